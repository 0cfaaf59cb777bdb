/* SPDX-License-Identifier: MIT */
/* Threads that trace while others do, and while traces come and go. */
#define _GNU_SOURCE
#include "served_store.h"

STORE(traces);
BUILDS(plain, memory, threads);

enum { N_THREADS = 32, BUSY_ROUNDS = 30 };

TEST(traces_that_come_and_go_leave_nothing_in_the_process)
{
	char name[16];
	int descriptors = 0, mappings = 0;
	for (int round = 0; round < ROUNDS; round++) {
		snprintf(name, sizeof(name), "t%d", round);
		start(0, name);
		trace_test_number((uint32_t)round);
		CHECK_EQ(events_in(name), 1);
		if (round == 1) {
			descriptors = count_descriptors();
			mappings = count_lines("/proc/self/maps", "/mem");
			CHECK(mappings > 0);
		}
	}
	CHECK_EQ(count_descriptors(), descriptors);
	CHECK_EQ(count_lines("/proc/self/maps", "/mem"), mappings);
}

TEST(threads_write_at_once)
{
	pthread_t threads[N_THREADS];
	start(0, "t");
	run_threads(threads, N_THREADS, N_EVENTS);
	join_threads(threads, N_THREADS);
	struct written sum = written_to("t");
	CHECK_EQ(sum.events + sum.lost, N_THREADS * N_EVENTS);
	CHECK_EQ(sum.n_processes, 1);
}

TEST(threads_come_and_go_while_traces_do)
{
	pthread_t thread;
	uint64_t sum = 0;
	char name[16];
	for (int round = 0; round < ROUNDS; round++) {
		snprintf(name, sizeof(name), "t%d", round);
		start(0, name);
		run_threads(&thread, 1, 10);
		join_threads(&thread, 1);
		sum += events_in(name);
	}
	CHECK_EQ(sum, ROUNDS * 10);
}

static pthread_key_t key;

static void trace_at_the_end(void *value)
{
	(void)value;
	trace_test_tick();
}

static void *end_with_an_event(void *value)
{
	trace_test_tick();
	CHECK_EQ(pthread_setspecific(key, value), 0);
	return NULL;
}

TEST(threads_trace_while_they_end)
{
	pthread_t thread;
	CHECK_EQ(pthread_key_create(&key, trace_at_the_end), 0);
	start(0, "t0");
	for (int i = 0; i < ROUNDS; i++) {
		CHECK_EQ(pthread_create(&thread, NULL, end_with_an_event, &key), 0);
		join_threads(&thread, 1);
	}
	CHECK_EQ(events_in("t0"), 2 * ROUNDS);
	/* Whoever is still taken for a thread of this process is looked at now. */
	start(0, "t1");
	trace_test_tick();
	CHECK_EQ(count_lines("/proc/self/maps", "/t0/"), 0);
	CHECK(count_lines("/proc/self/maps", "/t1/") > 0);
}

static bool is_over;

static void *write_until_over(void *unused)
{
	while (!__atomic_load_n(&is_over, __ATOMIC_RELAXED))
		trace_test_tick();
	return unused;
}

/* How many descriptors a trace takes. */
static int measure_trace(const char *name)
{
	int before = count_descriptors();
	start(0, name);
	trace_test_tick();
	return count_descriptors() - before;
}

TEST(traces_are_replaced_under_the_eyes_of_writers)
{
	pthread_t threads[4];
	char name[16];
	a_trace("none");
	int none = count_descriptors(), one = measure_trace("measured");
	CHECK(one > 0);
	for (int i = 0; i < 4; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, write_until_over, NULL), 0);
	for (int round = 0; round < BUSY_ROUNDS; round++) {
		snprintf(name, sizeof(name), "t%d", round);
		start((unsigned)round % 2, name);
		for (int tries = 0; !written_to(name).n_processes && tries < 60000; tries++)
			usleep(1000);
		CHECK_EQ(written_to(name).n_processes, 1);
	}
	/* They go on writing: in the last two traces. */
	for (int tries = 0; count_descriptors() > none + 2 * one && tries < 60000; tries++)
		usleep(1000);
	CHECK_EQ(count_descriptors(), none + 2 * one);
	__atomic_store_n(&is_over, true, __ATOMIC_RELAXED);
	join_threads(threads, 4);
	for (unsigned slot = 0; slot < 2; slot++) {
		snprintf(name, sizeof(name), "last%u", slot);
		start(slot, name);
		trace_test_tick();
	}
	CHECK_EQ(count_descriptors(), none + 2 * one);
}
