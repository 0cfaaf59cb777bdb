/* SPDX-License-Identifier: MIT */
/*
 * Time counters. One line a sample:  NAME NANOSECONDS N
 *
 *     bench_counters ROUNDS CPU OTHER_CPU STORE
 *
 * Adjusts: nanoseconds each, of N. Reads: nanoseconds for all counters on all CPUs. Everything is measured in each
 * round, so that what disturbs the machine disturbs all of it alike.
 */
#define _GNU_SOURCE
#include "bench.h"
#include "yardsticks.h"

#include <relayfs/producer.h>

typedef int add_function(struct relay_counters *counters, int instance, int64_t delta);

enum { ADDS = 5000000, PAIR_ADDS = 2000000, N_COUNTERS = 1000, COPIES = 2000 };

static struct relay_counters *counters;
static int instance, cpus[2];

static double time_adds(add_function *volatile add, int n)
{
	add_function *call = add;
	double start = now_ns();
	for (int i = 0; i < n; i++)
		if (call(counters, instance, 1))
			die("add");
	return (now_ns() - start) / n;
}

static void sample_adds(const char *name, add_function *add)
{
	printf("%s %.3f %d\n", name, time_adds(add, ADDS), ADDS);
}

/* What is compiled into the loop. */
#define SAMPLE_INLINE(name, call)                                              \
	do {                                                                   \
		int failed = 0;                                                \
		double start = now_ns();                                       \
		for (int i = 0; i < ADDS; i++) {                               \
			__asm__ volatile("" ::: "memory");                     \
			failed |= (call);                                      \
		}                                                              \
		if (failed)                                                    \
			die(name);                                             \
		printf("%s %.3f %d\n", name, (now_ns() - start) / ADDS, ADDS); \
	} while (0)

static void sample_inline(void)
{
	static int64_t word;
	SAMPLE_INLINE("plain-inline", (*(volatile int64_t *)&word += 1, 0));
	SAMPLE_INLINE("adjust-inline", relay_perf_adjust(counters, instance, 1));
	SAMPLE_INLINE("locked-inline", (__atomic_fetch_add(&word, 1, __ATOMIC_RELAXED), 0));
}

/* ------------------------------------------------------------------ two writers */

static long adds_beside(void *on)
{
	add_function **add = on;
	time_adds(*add, PAIR_ADDS);
	return 0;
}

static void sample_two(const char *name, add_function *add)
{
	struct side sides[2] = {{.cpu = cpus[0], .work = adds_beside, .on = &add},
	                        {.cpu = cpus[1], .work = adds_beside, .on = &add}};
	run_sides(sides, 2);
	printf("%s %.3f %d\n", name, (sides[0].ns + sides[1].ns) / (2.0 * PAIR_ADDS), 2 * PAIR_ADDS);
}

/* ------------------------------------------------------------------ reading */

static void sample_reads(void)
{
	uint64_t bytes = relay_counters_mapped_bytes(counters) - relay_counters_header(counters)->data_at;
	size_t n = bytes / 8 / relay_counters_header(counters)->nr_blocks;
	const char *mapped = (const char *)relay_counters_header(counters) + RELAY_PAGE_BYTES;
	int64_t *values = aligned_alloc(4096, bytes);
	if (!values)
		die("aligned_alloc");
	memset(values, 0, bytes);
	double start = now_ns();
	for (int i = 0; i < COPIES; i++) {
		memcpy(values, mapped, bytes);
		__asm__ volatile("" ::: "memory");
	}
	double copied = now_ns();
	for (int i = 0; i < COPIES; i++)
		if (relay_counters_refresh(counters) || relay_counters_copy(counters, values, n) != (long)n)
			die("copy");
	double read = now_ns();
	printf("memcpy %.1f %d\nread-all %.1f %d\n", (copied - start) / COPIES, N_COUNTERS, (read - copied) / COPIES,
	       N_COUNTERS);
	free(values);
}

int main(int argc, char **argv)
{
	char name[32];
	if (argc != 5)
		return 2;
	take_cpus(argv, cpus);
	counters = relay_counters_open(argv[4]);
	if (!counters)
		die(argv[4]);
	for (int i = 0; i < N_COUNTERS; i++) {
		snprintf(name, sizeof(name), "bench/%d", i);
		instance = relay_perf_add(counters, name);
		if (instance < 0)
			die("relay_perf_add");
	}
	if (relay_counters_refresh(counters) < 0)
		die("relay_counters_refresh");
	for (int round = 0; round < atoi(argv[1]); round++) {
		pin(cpus[0]);
		sample_adds("plain", yardstick_add);
		sample_adds("adjust", relay_perf_adjust);
		sample_adds("locked", yardstick_locked_add);
		sample_inline();
		sample_reads();
		if (cpus[0] != cpus[1]) {
			sample_two("two-adjust", relay_perf_adjust);
			sample_two("two-locked", yardstick_locked_add);
		}
	}
	relay_counters_close(counters);
	return 0;
}
