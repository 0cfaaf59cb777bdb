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
#include <errno.h>
#include <pthread.h>
#include <relayfs/counters.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* From the library, but not in its headers: additions as others would do them, behind the same kind of call. */
int relay_bench_add(struct relay_counters *counters, int instance, int64_t delta);
int relay_bench_locked_add(struct relay_counters *counters, int instance, int64_t delta);

typedef int add_function(struct relay_counters *counters, int instance, int64_t delta);

enum { ADDS = 5000000, PAIR_ADDS = 2000000, N_COUNTERS = 1000, COPIES = 2000 };

static struct relay_counters *counters;
static int instance, cpus[2];

static _Noreturn void die(const char *what)
{
	fprintf(stderr, "bench_counters: %s: %s\n", what, strerror(errno));
	exit(2);
}

/* This thread's time on a CPU: nothing here sleeps or calls the system, so all else is other people's. */
static double now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void pin(int cpu)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set) != 0)
		die("sched_setaffinity");
}

static double time_adds(add_function *add, int n)
{
	double start = now_ns();
	for (int i = 0; i < n; i++)
		if (add(counters, instance, 1))
			die("add");
	return (now_ns() - start) / n;
}

static void sample_adds(const char *name, add_function *add)
{
	printf("%s %.3f %d\n", name, time_adds(add, ADDS), ADDS);
}

/* ------------------------------------------------------------------ two writers */

struct writer {
	pthread_t thread;
	add_function *add;
	int cpu;
	double ns;
};

static pthread_barrier_t both;

static void *write_beside(void *arg)
{
	struct writer *writer = arg;
	pin(writer->cpu);
	pthread_barrier_wait(&both);
	writer->ns = time_adds(writer->add, PAIR_ADDS);
	return NULL;
}

static void sample_two(const char *name, add_function *add)
{
	struct writer writers[2] = {{.add = add, .cpu = cpus[0]}, {.add = add, .cpu = cpus[1]}};
	for (int i = 0; i < 2; i++)
		if (pthread_create(&writers[i].thread, NULL, write_beside, &writers[i]))
			die("pthread_create");
	for (int i = 0; i < 2; i++)
		pthread_join(writers[i].thread, NULL);
	printf("%s %.3f %d\n", name, (writers[0].ns + writers[1].ns) / 2, 2 * PAIR_ADDS);
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
	cpus[0] = atoi(argv[2]);
	cpus[1] = atoi(argv[3]);
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
	pthread_barrier_init(&both, NULL, 2);
	for (int round = 0; round < atoi(argv[1]); round++) {
		pin(cpus[0]);
		sample_adds("plain", relay_bench_add);
		sample_adds("adjust", relay_perf_adjust);
		sample_adds("locked", relay_bench_locked_add);
		sample_reads();
		if (cpus[0] != cpus[1]) {
			sample_two("two-adjust", relay_perf_adjust);
			sample_two("two-locked", relay_bench_locked_add);
		}
	}
	relay_counters_close(counters);
	return 0;
}
