/* SPDX-License-Identifier: MIT */
/*
 * Trace into relayfs.
 *
 *     bench_trace CPU                    takes samples, see bench_trace.h
 *     bench_trace CPU BYTES_A_S BYTES    writes so much at this rate; prints how many events it were
 */
#define _GNU_SOURCE
#include <relayfs/trace.h>

RELAY_TRACE_EVENT(bench, payload, (u64, a), (u64, b), (u64, c), (u64, d), (u64, e), (u64, f), (u64, g), (u64, h))
RELAY_TRACE_EVENT(bench, block, (bytes, data))
#define EVENT(n) trace_bench_payload(n, n, n, n, n, n, n, n)

#include "bench_trace.h"

enum { BLOCK_BYTES = 4096, BURST_NS = 1000000 };

static double elapsed_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* A burst each millisecond, of what is due by then. */
static uint64_t write_paced(double bytes_a_s, double bytes)
{
	static char block[BLOCK_BYTES];
	double start = elapsed_ns(), due;
	uint64_t n = 0;

	while ((double)n * BLOCK_BYTES < bytes) {
		due = bytes_a_s * (elapsed_ns() - start) / 1e9;
		for (; (double)n * BLOCK_BYTES < due && (double)n * BLOCK_BYTES < bytes; n++)
			trace_bench_block(block, sizeof(block));
		nanosleep(&(struct timespec){.tv_nsec = BURST_NS}, NULL);
	}
	return n;
}

int main(int argc, char **argv)
{
	if (argc != 2 && argc != 4)
		return 2;
	pin(atoi(argv[1]));
	if (argc == 4)
		printf("%" PRIu64 "\n", write_paced(atof(argv[2]), atof(argv[3])));
	else
		take_samples();
	return 0;
}
