/* SPDX-License-Identifier: MIT */
/*
 * One process writes, another one reads, on two CPUs; nothing is lost, because a writer that is refused tries again.
 *
 *     bench_flow SECONDS WRITER_CPU READER_CPU CHANNEL MEM_FILE RING
 *
 * CHANNEL: of relay buffers, whose memory is MEM_FILE; RING: of a record ring; both with one buffer. Prints the lines of
 * bench_flow.h, one for each way of reading and length of record.
 */
#define _GNU_SOURCE
#include "bench_flow.h"

#include <relayfs/producer.h>
#include <relayfs/reader.h>
#include <relayfs/ring_store.h>
#include <relayfs/store.h>

static struct rchan_buf *opened;
static struct relay_rings *ring;

static uint64_t read_channel(const struct flow *flow)
{
	struct relay_reader *reader = relay_reader_open(flow->path);
	uint64_t bytes = 0;
	const void *data;
	size_t length;
	if (!reader)
		die(flow->path);
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
	for (;;) {
		int n = relay_ring_consume(rings->ring[0], take, NULL, 0);
		if (n == -1)
			break;
		if (n == 0 && flow->timeout_ms)
			relay_ring_wait(rings->ring, 1, flow->timeout_ms);
	}
	relay_rings_close(rings);
	return ring_bytes - 1;
}

/* Where the writer writes. */
struct to {
	struct rchan *chan;
	struct relay_rings *rings;
	size_t length;
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
	while (relay_ring_output(to->rings->ring[0], record, to->length, RELAY_RING_WILL_RETRY) == -EAGAIN)
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

static uint32_t channel_wakeups(void)
{
	return relay_buf_wake_seq(opened);
}

static uint32_t ring_wakeups(void)
{
	return relay_ring_wake_seq(ring->ring[0]);
}

int main(int argc, char **argv)
{
	const size_t lengths[] = {64, LONGEST};
	if (argc != 7)
		return 2;
	struct flow flow = {.seconds = atof(argv[1]), .cpus = {atoi(argv[2]), atoi(argv[3])}};
	opened = relay_buf_open(argv[5]);
	ring = relay_rings_attach(argv[6]);
	if (!opened || !ring)
		die("open");
	open_pipe(flow.ends);
	for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
		flow.length = lengths[i];
		flow.path = argv[4];
		flow.timeout_ms = 0;
		measure("spins", flow, write_channel, read_channel, channel_wakeups);
		flow.timeout_ms = -1;
		measure("sleeps", flow, write_channel, read_channel, channel_wakeups);
		flow.path = argv[6];
		flow.timeout_ms = 0;
		measure("ring-spins", flow, write_ring, read_ring, ring_wakeups);
		flow.timeout_ms = -1;
		measure("ring-sleeps", flow, write_ring, read_ring, ring_wakeups);
		measure("pipe", flow, write_descriptor, read_descriptor, no_wakeups);
	}
	close_ends(flow.ends);
	relay_rings_close(ring);
	relay_buf_release(opened);
	return 0;
}
