/* SPDX-License-Identifier: MIT */
/*
 * One process writes, another one reads, on two CPUs; nothing is lost, because a writer that is refused tries again.
 *
 *     bench_flow SECONDS WRITER_CPU READER_CPU CHANNEL MEM_FILE RING
 *
 * CHANNEL: of relay buffers, whose memory is MEM_FILE; RING: of a record ring; both with one buffer. Prints a line a way of
 * reading and length of record:
 *
 *     NAME MEGABYTES_PER_SECOND RECORDS WAKEUPS_PER_SECOND
 */
#define _GNU_SOURCE
#include "bench.h"

#include <err.h>
#include <fcntl.h>
#include <relayfs/producer.h>
#include <relayfs/reader.h>
#include <relayfs/ring_store.h>
#include <relayfs/store.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LONGEST = 4096, BATCH = 64 };

static unsigned char record[LONGEST];
static volatile uint64_t sink;

static struct rchan_buf *opened;
static struct relay_rings *ring;

/* What the two processes of one measurement share. A record of one byte is the last one. */
struct flow {
	size_t length;
	double seconds;
	int cpus[2];
	const char *path;
	int timeout_ms; /* of the reader's waits; 0: it spins */
	int pipe[2];
};

static void touch(const void *data, size_t length)
{
	uint64_t sum = 0;
	for (size_t i = 0; i + 8 <= length; i += 64)
		sum += *(const uint64_t *)((const char *)data + i);
	sink = sum;
}

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

static uint64_t read_pipe(const struct flow *flow)
{
	static unsigned char buffer[1 << 20];
	uint64_t bytes = 0;
	ssize_t n;
	close(flow->pipe[1]);
	while ((n = read(flow->pipe[0], buffer, sizeof(buffer))) > 0) {
		touch(buffer, (size_t)n);
		bytes += (uint64_t)n;
	}
	return bytes;
}

static uint64_t write_channel(const struct flow *flow)
{
	struct rchan *chan = relay_attach(flow->path);
	uint64_t records = 0;
	if (!chan)
		die(flow->path);
	const double end = clock_ns(CLOCK_MONOTONIC) + flow->seconds * 1e9;
	for (; clock_ns(CLOCK_MONOTONIC) < end; records += BATCH)
		for (int i = 0; i < BATCH; i++)
			while (relay_try_write(chan, record, flow->length) == -ENOSPC)
				;
	while (relay_try_write(chan, record, 1) == -ENOSPC)
		;
	relay_flush(chan);
	relay_close(chan);
	return records;
}

static uint64_t write_ring(const struct flow *flow)
{
	struct relay_rings *rings = relay_rings_attach(flow->path);
	uint64_t records = 0;
	if (!rings)
		die(flow->path);
	const double end = clock_ns(CLOCK_MONOTONIC) + flow->seconds * 1e9;
	for (; clock_ns(CLOCK_MONOTONIC) < end; records += BATCH)
		for (int i = 0; i < BATCH; i++)
			while (relay_ring_output(rings->ring[0], record, flow->length, RELAY_RING_WILL_RETRY) ==
			       -EAGAIN)
				;
	while (relay_ring_output(rings->ring[0], record, 1, RELAY_RING_WILL_RETRY) == -EAGAIN)
		;
	relay_rings_close(rings);
	return records;
}

static uint64_t write_pipe(const struct flow *flow)
{
	uint64_t records = 0;
	const double end = clock_ns(CLOCK_MONOTONIC) + flow->seconds * 1e9;
	close(flow->pipe[0]);
	for (; clock_ns(CLOCK_MONOTONIC) < end; records += BATCH)
		for (int i = 0; i < BATCH; i++)
			if (write(flow->pipe[1], record, flow->length) < 0)
				die("write");
	close(flow->pipe[1]);
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

static uint32_t no_wakeups(void)
{
	return 0;
}

static void measure(const char *name, struct flow flow, uint64_t (*write_all)(const struct flow *),
                    uint64_t (*read_all)(const struct flow *), uint32_t (*wakeups)(void))
{
	int status;
	if (pipe2(flow.pipe, O_CLOEXEC) < 0 || fcntl(flow.pipe[1], F_SETPIPE_SZ, 1 << 20) < 0)
		die("pipe");
	fflush(stdout);
	const uint32_t before = wakeups();
	const double start = clock_ns(CLOCK_MONOTONIC);
	const pid_t reader = fork();
	if (reader == 0) {
		pin(flow.cpus[1]);
		const uint64_t bytes = read_all(&flow);
		const double ns = clock_ns(CLOCK_MONOTONIC) - start;
		printf("%s-%zu %.1f %llu %.0f\n", name, flow.length, (double)bytes / ns * 1e3,
		       (unsigned long long)(bytes / flow.length), (wakeups() - before) / ns * 1e9);
		exit(0);
	}
	pin(flow.cpus[0]);
	write_all(&flow);
	close(flow.pipe[0]);
	close(flow.pipe[1]);
	if (waitpid(reader, &status, 0) < 0 || status)
		errx(2, "%s: the reader ended with %d", name, status);
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
		measure("pipe", flow, write_pipe, read_pipe, no_wakeups);
	}
	relay_rings_close(ring);
	relay_buf_release(opened);
	return 0;
}
