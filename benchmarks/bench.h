/* SPDX-License-Identifier: MIT */
/* What the C programs of the benchmarks share, and one in C++. Define _GNU_SOURCE before it. */
#ifndef BENCH_H
#define BENCH_H

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static inline __attribute__((noreturn)) void die(const char *what)
{
	fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, strerror(errno));
	exit(2);
}

static inline double clock_ns(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* This thread's time on a CPU: what is timed neither sleeps nor calls the system, so all else is other people's. */
static inline double now_ns(void)
{
	return clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

/* Work n times, so often a second: each millisecond as often as is due by then. */
static inline void work_paced(void (*work)(void), double a_second, uint64_t n)
{
	const double start = clock_ns(CLOCK_MONOTONIC);
	const struct timespec millisecond = {.tv_nsec = 1000000};
	uint64_t i = 0;

	while (i < n) {
		const double due = a_second * (clock_ns(CLOCK_MONOTONIC) - start) / 1e9;
		for (; i < n && (double)i < due; i++)
			work();
		nanosleep(&millisecond, NULL);
	}
}

static inline void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set) != 0)
		die("sched_setaffinity");
}

/* Take two CPUs from the arguments 2 and 3, and run on the first one. */
static inline void take_cpus(char **argv, int cpus[2])
{
	cpus[0] = atoi(argv[2]);
	cpus[1] = atoi(argv[3]);
	pin(cpus[0]);
}

/* One of several threads that work at the same time, each on a CPU of its own. */
struct side {
	pthread_t thread;
	int cpu;
	long (*work)(void *on); /* returns how many of its pieces were refused */
	void *on;
	long refused;
	double ns;
};

static atomic_int sides_ready, sides_go;

static inline void *run_side(void *argument)
{
	struct side *side = (struct side *)argument;
	double start;

	pin(side->cpu);
	atomic_fetch_add(&sides_ready, 1);
	while (!atomic_load(&sides_go))
		;
	start = now_ns();
	side->refused = side->work(side->on);
	side->ns = now_ns() - start;
	return NULL;
}

static inline void run_sides(struct side *sides, int n)
{
	int i;

	atomic_store(&sides_ready, 0);
	atomic_store(&sides_go, 0);
	for (i = 0; i < n; i++)
		if (pthread_create(&sides[i].thread, NULL, run_side, &sides[i]) != 0)
			die("pthread_create");
	while (atomic_load(&sides_ready) < n)
		sched_yield();
	atomic_store(&sides_go, 1);
	for (i = 0; i < n; i++)
		pthread_join(sides[i].thread, NULL);
}

/* How fast one or two of them are together, in records a microsecond of each one's CPU. */
static inline void sample_rate(const char *name, const int *cpus, int n, long (*work)(void *), void *on, long records)
{
	struct side sides[2] = {{.cpu = cpus[0], .work = work, .on = on}, {.cpu = cpus[1], .work = work, .on = on}};
	double records_per_us = 0;
	long refused = 0;
	int i;

	run_sides(sides, n);
	for (i = 0; i < n; i++) {
		refused += sides[i].refused;
		records_per_us += (double)records / sides[i].ns * 1e3;
	}
	printf("%s %.4f %ld %ld\n", name, records_per_us, n * records - refused, refused);
}

#endif
