/* SPDX-License-Identifier: MIT */
/* What is taken away under the eyes of threads that may be using it is freed when they have left, and not before. */
#define _GNU_SOURCE
#include "check.h"

#include "base/futex.h"
#include "trace/threads.h"

#include <pthread.h>

LIBRARY(static);

static unsigned n_freed;

static void count(void *arg)
{
	(void)arg;
	n_freed++;
}

static void retire(struct relay_retired *retired)
{
	sigset_t before;

	relay_trace_lock(&before);
	relay_trace_retire(retired, count, NULL);
	CHECK(relay_trace_has_retired(count));
	relay_trace_unlock(&before);
}

static unsigned freed(void)
{
	sigset_t before;

	relay_trace_lock(&before);
	relay_trace_free_retired();
	CHECK_EQ(relay_trace_has_retired(count), n_freed == 0);
	relay_trace_unlock(&before);
	return n_freed;
}

/* Another thread, which takes a step when it is told to. */
static pthread_barrier_t begin, end;
static void (*step)(void);

static void *take_steps(void *unused)
{
	for (;;) {
		pthread_barrier_wait(&begin);
		if (!step)
			return unused;
		step();
		pthread_barrier_wait(&end);
	}
}

static void let_other(void (*do_this)(void))
{
	step = do_this;
	pthread_barrier_wait(&begin);
	pthread_barrier_wait(&end);
}

static void enter(void)
{
	relay_trace_enter();
}

static void leave(void)
{
	relay_trace_leave();
}

static void start_other(void)
{
	pthread_t thread;

	CHECK(relay_trace_begin_threads());
	CHECK(relay_fence_writers());
	pthread_barrier_init(&begin, NULL, 2);
	pthread_barrier_init(&end, NULL, 2);
	CHECK_EQ(pthread_create(&thread, NULL, take_steps, NULL), 0);
	pthread_detach(thread);
}

TEST(what_a_thread_may_be_using_is_freed_when_it_has_left)
{
	struct relay_retired retired;

	start_other();
	let_other(enter);
	retire(&retired);
	CHECK_EQ(freed(), 0);
	let_other(leave);
	CHECK_EQ(freed(), 1);
}

TEST(a_thread_that_is_inside_again_is_another_one)
{
	struct relay_retired retired;

	start_other();
	let_other(enter);
	retire(&retired);
	let_other(leave);
	let_other(enter);
	CHECK_EQ(freed(), 1);
}

TEST(a_thread_that_was_interrupted_inside_has_not_left_with_the_inner_one)
{
	struct relay_retired retired;

	start_other();
	let_other(enter);
	let_other(enter);
	retire(&retired);
	let_other(leave);
	CHECK_EQ(freed(), 0);
	let_other(leave);
	CHECK_EQ(freed(), 1);
}

TEST(who_enters_afterwards_holds_nothing_up)
{
	struct relay_retired retired;

	start_other();
	retire(&retired);
	let_other(enter);
	CHECK_EQ(freed(), 1);
}

TEST(each_is_freed_only_after_what_was_retired_last_may_be)
{
	struct relay_retired first, last;

	start_other();
	retire(&first);
	let_other(enter);
	retire(&last);
	CHECK_EQ(freed(), 0);
	let_other(leave);
	CHECK_EQ(freed(), 2);
}

TEST(its_own_thread_counts_from_the_second_time_that_it_is_inside)
{
	struct relay_retired first, second;

	start_other();
	enter();
	retire(&first);
	CHECK_EQ(freed(), 1);
	n_freed = 0;
	enter();
	retire(&second);
	CHECK_EQ(freed(), 0);
	leave();
	CHECK_EQ(freed(), 0);
	leave();
	CHECK_EQ(freed(), 1);
}
