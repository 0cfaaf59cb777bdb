/* SPDX-License-Identifier: MIT */
/*
 * Trace into relayfs.
 *
 *     bench_trace CPU                              takes samples, see bench_trace.h
 *     bench_trace CPU BYTES_A_S BYTES [CHANNEL]    writes so much at this rate, of events or to a channel
 */
#define _GNU_SOURCE
#include <relayfs/relay.h>
#include <relayfs/trace.h>

RELAY_TRACE_EVENT(bench, payload, (u64, a), (u64, b), (u64, c), (u64, d), (u64, e), (u64, f), (u64, g), (u64, h))
RELAY_TRACE_EVENT(bench, block, (bytes, data))
#define EVENT(n) trace_bench_payload(n, n, n, n, n, n, n, n)

#include "bench_trace.h"

/* TEXT_BYTES: more than zstd looks back */
enum { BLOCK_BYTES = 4096, TEXT_BYTES = 4 << 20 };

static char text[TEXT_BYTES];

/* Text of 64 characters at random, which compresses to three quarters. */
static void make_text(void)
{
	uint64_t state = 88172645463325252u;

	for (size_t i = 0; i < TEXT_BYTES; i++) {
		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		text[i] = (char)(' ' + state % 64);
	}
}

static struct rchan *channel;

static void write_block(void)
{
	static size_t at;

	if (channel)
		relay_write(channel, text + at, BLOCK_BYTES);
	else
		trace_bench_block(text + at, BLOCK_BYTES);
	at = (at + BLOCK_BYTES) % TEXT_BYTES;
}

int main(int argc, char **argv)
{
	if (argc != 2 && argc != 4 && argc != 5)
		return 2;
	pin(atoi(argv[1]));
	make_text();
	if (argc == 5)
		channel = relay_attach(argv[4]);
	if (argc == 5 && !channel)
		return 1;
	if (argc > 2)
		work_paced(write_block, atof(argv[2]) / BLOCK_BYTES, strtoull(argv[3], NULL, 10) / BLOCK_BYTES);
	else
		take_samples();
	return 0;
}
