/* SPDX-License-Identifier: MIT */
/*
 * Write events that tell when they were written.
 *
 *     bench_view EVENTS_A_SECOND EVENTS
 *
 * The first one is written at once, the others when there is a byte to read from the standard input. Then the program says
 * so with a line, and waits for the end of its input.
 */
#define _GNU_SOURCE
#include "bench.h"
#include <relayfs/trace.h>

RELAY_TRACE_EVENT(bench, request, (string, path), (u64, ns))

static void write_event(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	trace_bench_request("/index.html", (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec);
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	write_event();
	getchar();
	work_paced(write_event, atof(argv[1]), strtoull(argv[2], NULL, 10) - 1);
	puts("done");
	fflush(stdout);
	while (getchar() != EOF)
		;
	return 0;
}
