/* SPDX-License-Identifier: MIT */
/*
 * Trace into relayfs.
 *
 *     bench_trace CPU                    takes samples, see bench_trace.h
 *     bench_trace CPU BYTES_A_S BYTES    writes so much at this rate
 */
#define _GNU_SOURCE
#include <relayfs/trace.h>

RELAY_TRACE_EVENT(bench, payload, (u64, a), (u64, b), (u64, c), (u64, d), (u64, e), (u64, f), (u64, g), (u64, h))
RELAY_TRACE_EVENT(bench, block, (bytes, data))
#define EVENT(n) trace_bench_payload(n, n, n, n, n, n, n, n)

#include "bench_trace.h"

enum { BLOCK_BYTES = 4096 };

static void write_block(void)
{
	static char block[BLOCK_BYTES];

	trace_bench_block(block, sizeof(block));
}

int main(int argc, char **argv)
{
	if (argc != 2 && argc != 4)
		return 2;
	pin(atoi(argv[1]));
	if (argc == 4)
		work_paced(write_block, atof(argv[2]) / BLOCK_BYTES, strtoull(argv[3], NULL, 10) / BLOCK_BYTES);
	else
		take_samples();
	return 0;
}
