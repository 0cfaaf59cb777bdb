/* SPDX-License-Identifier: MIT */
/* export_spans N: in two threads, N times one span in another, and a counter. */
#define _GNU_SOURCE
#include <pthread.h>
#include <relayfs/trace.h>
#include <stdlib.h>

#define BEGIN a macro of the program
RELAY_TRACE_SPAN(spans, outer, (u32, n), (string, text))
RELAY_TRACE_SPAN(spans, inner)
RELAY_TRACE_SPAN(spans, by_hand, (bytes, data))
RELAY_TRACE_COUNTER(spans, level, i16)
RELAY_TRACE_COUNTER(spans, load, f64)

static uint32_t n_rounds;

/* The block is left in each of the ways that there are. */
static int work(uint32_t n)
{
	RELAY_TRACE_SCOPE(spans, outer)(n, "text");
	for (int i = 0; i < 3; i++) {
		RELAY_TRACE_SCOPE(spans, inner)();
		if (n % 3 == 0)
			continue;
		if (n % 3 == 1)
			return 1;
		RELAY_TRACE_SCOPE(spans, inner)();
		break;
	}
	trace_spans_by_hand(&n, sizeof(n));
	trace_spans_level((int16_t)-n);
	trace_spans_by_hand_end();
	return 0;
}

static void *run(void *unused)
{
	for (uint32_t n = 0; n < n_rounds; n++)
		work(n);
	trace_spans_load(0.5);
	return unused;
}

int main(int argc, char **argv)
{
	pthread_t thread;

	if (argc != 2)
		return 2;
	n_rounds = (uint32_t)strtoul(argv[1], NULL, 10);
	if (pthread_create(&thread, NULL, run, NULL))
		return 1;
	run(NULL);
	return pthread_join(thread, NULL);
}
