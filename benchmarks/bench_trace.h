/* SPDX-License-Identifier: MIT */
/*
 * What both tracers' programs do: they take samples when they are told to, since traces are started between them.
 *
 *     standard input: KIND EVENTS     standard output: NANOSECONDS an event
 *
 * KIND is `events`, `empty`: the same loop without the event, or `clock`: it reads CLOCK_MONOTONIC instead. The includer
 * defines EVENT(n), 64 bytes of payload.
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

static LOOP void read_clock(uint64_t events)
{
	struct timespec now;
	uint64_t i;

	for (i = 0; i < events; i++) {
		clock_gettime(CLOCK_MONOTONIC, &now);
		__asm__ volatile("" : : "r"(i), "m"(now) : "memory");
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
		void (*loop)(uint64_t events) = emit;
		if (strcmp(kind, "empty") == 0)
			loop = empty;
		else if (strcmp(kind, "clock") == 0)
			loop = read_clock;
		printf("%.4f\n", sample(loop, events));
		fflush(stdout);
	}
}
