/* SPDX-License-Identifier: MIT */
/*
 * One process writes, another one reads, on two CPUs; nothing is lost, because a writer that is refused tries again.
 *
 *     bench_flow SECONDS WRITER_CPU READER_CPU DIRECTORY MEM_FILE
 *
 * In DIRECTORY are the channels flow, whose memory is MEM_FILE, and ring, with one buffer for all CPUs; and percpu and
 * percpu-ring, with one for each CPU, of which the writer's is read. Prints the lines of bench_flow.h, one for each way of
 * reading and length of record.
 */
#define _GNU_SOURCE
#include "bench_flow.h"

#include <limits.h>
#include <relayfs/producer.h>
#include <relayfs/reader.h>
#include <relayfs/ring_store.h>
#include <relayfs/store.h>

enum { SUBBUF_BYTES = 256 << 10, BARE_BYTES = 8 * SUBBUF_BYTES };

static struct rchan_buf *opened;
static struct relay_rings *ring;

static uint64_t read_file(const struct flow *flow, const char *path)
{
	struct relay_reader *reader = relay_reader_open(path);
	uint64_t bytes = 0;
	const void *data;
	size_t length;
	if (!reader)
		die(path);
	while (!relay_reader_finished(reader)) {
		int n = relay_reader_next(reader, &data, &length, flow->timeout_ms);
		if (n != 1)
			continue;
		touch(data, length);
		bytes += length;
		/* The last record is a single byte. */
		if (relay_reader_done(reader) != 0 || length % 64 == 1)
			break;
	}
	relay_reader_close(reader);
	return bytes - 1;
}

static uint64_t read_channel(const struct flow *flow)
{
	return read_file(flow, flow->path);
}

static uint64_t read_percpu(const struct flow *flow)
{
	char path[PATH_MAX];
	snprintf(path, sizeof(path), "%s%d", flow->path, flow->cpus[0]);
	return read_file(flow, path);
}

static uint64_t ring_bytes;

static int take(void *context, const void *data, size_t length)
{
	(void)context;
	touch(data, length);
	ring_bytes += length;
	return length == 1 ? -1 : 0;
}

static uint64_t read_ring(const struct flow *flow)
{
	struct relay_rings *rings = relay_rings_attach(flow->path);
	if (!rings)
		die(flow->path);
	struct relay_ring *const *from = &rings->ring[rings->n > 1 ? flow->cpus[0] : 0];
	for (;;) {
		int n = relay_ring_consume(*from, take, NULL, 0);
		if (n == -1)
			break;
		if (n == 0 && flow->timeout_ms)
			relay_ring_wait(from, 1, flow->timeout_ms);
	}
	relay_rings_close(rings);
	return ring_bytes - 1;
}

/* Where the writer writes. */
struct to {
	struct rchan *chan;
	struct relay_rings *rings;
	size_t length;
	uint64_t written, consumed; /* what write_to_bare() has stored last, and loaded */
};

static void write_one(void *context)
{
	const struct to *to = context;
	while (relay_try_write(to->chan, record, to->length) == -ENOSPC)
		;
}

static uint64_t write_channel(const struct flow *flow)
{
	struct to to = {.chan = relay_attach(flow->path), .length = flow->length};
	if (!to.chan)
		die(flow->path);
	const uint64_t records = write_for(flow, write_one, &to);
	to.length = 1;
	write_one(&to);
	relay_flush(to.chan);
	relay_close(to.chan);
	return records;
}

static void output_one(void *context)
{
	const struct to *to = context;
	while (relay_rings_output(to->rings, record, to->length, RELAY_RING_WILL_RETRY) == -EAGAIN)
		;
}

static uint64_t write_ring(const struct flow *flow)
{
	struct to to = {.rings = relay_rings_attach(flow->path), .length = flow->length};
	if (!to.rings)
		die(flow->path);
	const uint64_t records = write_for(flow, output_one, &to);
	to.length = 1;
	output_one(&to);
	relay_rings_close(to.rings);
	return records;
}

/* --- the least that any way through shared memory takes --- */

/* A ring without a header, a count or another writer. Each position has a line of its own, and the reader takes whole
 * sub-buffers. */
struct bare {
	uint64_t written __attribute__((__aligned__(128)));
	uint64_t consumed __attribute__((__aligned__(128)));
	unsigned char data[BARE_BYTES] __attribute__((__aligned__(128)));
};

static struct bare *bare;

static void write_to_bare(void *context)
{
	struct to *to = context;
	while (to->written + to->length - to->consumed > BARE_BYTES)
		to->consumed = __atomic_load_n(&bare->consumed, __ATOMIC_ACQUIRE);
	memcpy(bare->data + to->written % BARE_BYTES, record, to->length);
	to->written += to->length;
	__atomic_store_n(&bare->written, to->written, __ATOMIC_RELEASE);
}

static uint64_t write_bare(const struct flow *flow)
{
	struct to to = {.length = flow->length};
	const uint64_t records = write_for(flow, write_to_bare, &to);
	to.length = 1;
	write_to_bare(&to);
	return records;
}

static uint64_t read_bare(const struct flow *flow)
{
	uint64_t at = 0, written = 0;
	(void)flow;
	while (written % 64 != 1 || at < written) {
		written = __atomic_load_n(&bare->written, __ATOMIC_ACQUIRE);
		const uint64_t length = written - at < SUBBUF_BYTES ? written - at : SUBBUF_BYTES;
		if (length < SUBBUF_BYTES && written % 64 != 1)
			continue;
		touch(bare->data + at % BARE_BYTES, length);
		at += length;
		__atomic_store_n(&bare->consumed, at, __ATOMIC_RELEASE);
	}
	return at - 1;
}

static void measure_bare(struct flow flow)
{
	bare = mmap(NULL, sizeof(*bare), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (bare == MAP_FAILED)
		die("mmap");
	measure("bare", flow, write_bare, read_bare, no_wakeups);
	munmap(bare, sizeof(*bare));
}

/* --- all --- */

static uint32_t channel_wakeups(void)
{
	return relay_buf_wake_seq(opened);
}

static uint32_t ring_wakeups(void)
{
	return relay_ring_wake_seq(ring->ring[0]);
}

static void measure_ours(struct flow flow, const char *directory)
{
	char flow_path[PATH_MAX], ring_path[PATH_MAX], percpu[PATH_MAX], percpu_ring[PATH_MAX];
	snprintf(flow_path, PATH_MAX, "%s/flow", directory);
	snprintf(ring_path, PATH_MAX, "%s/ring", directory);
	snprintf(percpu, PATH_MAX, "%s/percpu", directory);
	snprintf(percpu_ring, PATH_MAX, "%s/percpu-ring", directory);
	for (flow.timeout_ms = 0; flow.timeout_ms >= -1; flow.timeout_ms--) {
		flow.path = flow_path;
		measure(flow.timeout_ms ? "sleeps" : "spins", flow, write_channel, read_channel, channel_wakeups);
		flow.path = ring_path;
		measure(flow.timeout_ms ? "ring-sleeps" : "ring-spins", flow, write_ring, read_ring, ring_wakeups);
	}
	flow.timeout_ms = 0;
	flow.path = percpu;
	measure("percpu-spins", flow, write_channel, read_percpu, no_wakeups);
	flow.path = percpu_ring;
	measure("percpu-ring-spins", flow, write_ring, read_ring, no_wakeups);
}

int main(int argc, char **argv)
{
	const size_t lengths[] = {64, LONGEST};
	char ring_path[PATH_MAX];
	if (argc != 6)
		return 2;
	struct flow flow = {.seconds = atof(argv[1]), .cpus = {atoi(argv[2]), atoi(argv[3])}};
	snprintf(ring_path, sizeof(ring_path), "%s/ring", argv[4]);
	opened = relay_buf_open(argv[5]);
	ring = relay_rings_attach(ring_path);
	if (!opened || !ring)
		die("open");
	open_pipe(flow.ends);
	for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
		flow.length = lengths[i];
		measure_ours(flow, argv[4]);
		measure_bare(flow);
		measure("pipe", flow, write_descriptor, read_descriptor, no_wakeups);
	}
	close_ends(flow.ends);
	relay_rings_close(ring);
	relay_buf_release(opened);
	return 0;
}
