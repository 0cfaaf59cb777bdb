/* SPDX-License-Identifier: MIT */
/* What the tests of bounded work share: the CPU time of a thread, and somebody who changes a word all the time. */
#ifndef BOUNDS_H
#define BOUNDS_H

#include "check.h"

#include <pthread.h>
#include <time.h>

static inline uint64_t cpu_ns(void)
{
	struct timespec now;

	CHECK_EQ(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now), 0);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

struct flipper {
	pthread_t thread;
	uint64_t *word;
	uint64_t value[2];
	uint64_t step; /* added each time */
	bool started, stopped;
};

static inline void *flip(void *context)
{
	struct flipper *flipper = context;
	cpu_set_t all;

	/* Not on the CPU to which the test is pinned. */
	CPU_ZERO(&all);
	for (unsigned i = 0; i < relay_n_possible_cpus(); i++)
		if (i != home_cpu || relay_n_possible_cpus() == 1)
			CPU_SET(i, &all);
	pthread_setaffinity_np(pthread_self(), sizeof(all), &all);
	for (uint64_t i = 0; !__atomic_load_n(&flipper->stopped, __ATOMIC_RELAXED); i++) {
		__atomic_store_n(flipper->word, flipper->value[i & 1] + i * flipper->step, __ATOMIC_RELAXED);
		__atomic_store_n(&flipper->started, true, __ATOMIC_RELAXED);
	}
	return NULL;
}

static inline void start_flipping(struct flipper *flipper)
{
	CHECK_EQ(pthread_create(&flipper->thread, NULL, flip, flipper), 0);
	while (!__atomic_load_n(&flipper->started, __ATOMIC_RELAXED))
		sched_yield();
}

static inline void stop_flipping(struct flipper *flipper)
{
	__atomic_store_n(&flipper->stopped, true, __ATOMIC_RELAXED);
	CHECK_EQ(pthread_join(flipper->thread, NULL), 0);
}

#endif
