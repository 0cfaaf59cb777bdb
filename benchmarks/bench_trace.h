/* SPDX-License-Identifier: MIT */
/*
 * What both tracers' programs do: they take samples when they are told to, since traces are started between them.
 *
 *     standard input: KIND EVENTS     standard output: NANOSECONDS an event
 *
 * KIND is `events`, or `empty`: the same loop without the event. The includer defines EVENT(n), 64 bytes of payload.
 */
#include "bench.h"

#include <inttypes.h>

/* Each loop begins a cache line: where it stands says nothing about what is in it. */
#define LOOP __attribute__((__noinline__, __aligned__(64)))

static LOOP void empty(uint64_t events)
{
	uint64_t i;

	for (i = 0; i < events; i++)
		__asm__ volatile("" : : "r"(i) : "memory");
}

static LOOP void emit(uint64_t events)
{
	uint64_t i;

	for (i = 0; i < events; i++) {
		__asm__ volatile("" : : "r"(i) : "memory");
		EVENT(i);
	}
}

static double sample(void (*loop)(uint64_t events), uint64_t events)
{
	double start;

	/* Buffers are made, and full if they can be. */
	loop(events / 8);
	start = now_ns();
	loop(events);
	return (now_ns() - start) / (double)events;
}

static void take_samples(void)
{
	char kind[16];
	uint64_t events;

	while (scanf("%15s %" SCNu64, kind, &events) == 2) {
		printf("%.4f\n", sample(strcmp(kind, "empty") == 0 ? empty : emit, events));
		fflush(stdout);
	}
}
