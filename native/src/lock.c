/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "lock.h"

#include "clock.h"
#include "owner.h"

#include <errno.h>
#include <sched.h>
#include <time.h>

/* Each yield may last as long as all others care to run: who is in a hurry, as a file server is, comes again instead. */
enum { YIELDS = 100, HURRIED_YIELDS = 2, ASK_NS = 5000000, PAUSE_NS = 100000, MAX_PAUSES = 10000 };

static bool change(uint64_t *word, uint64_t *from, uint64_t to)
{
	/* Pairs with the release in relay_lock_release(). */
	return __atomic_compare_exchange_n(word, from, to, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

/* To ask who is dead costs system calls. But on a busy machine a few yields last longer than anybody should wait. */
static bool is_time_to_ask(int tries, int yields, uint64_t *last_ns)
{
	uint64_t now = relay_clock_ns(CLOCK_MONOTONIC);
	bool ask = tries % yields == yields - 1 || (tries && now - *last_ns >= ASK_NS);
	if (ask || tries == 0)
		*last_ns = now;
	return ask;
}

static int take(uint64_t *word, bool patient)
{
	uint64_t self = relay_owner_self(), asked_ns = 0;
	int yields = patient ? YIELDS : HURRIED_YIELDS;
	for (int tries = 0; tries < (patient ? yields + MAX_PAUSES : yields); tries++) {
		uint64_t holder = 0;
		if (change(word, &holder, self))
			return 0;
		if (holder == self)
			return -EDEADLK;
		if (is_time_to_ask(tries, yields, &asked_ns) && !relay_owner_alive(holder) &&
		    change(word, &holder, self))
			return 1;
		if (tries < yields)
			sched_yield();
		else
			nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
	}
	return -EBUSY;
}

int relay_lock_take(uint64_t *word, bool patient, sigset_t *before)
{
	/* Faults are not put off: they would kill. */
	sigset_t all;
	sigfillset(&all);
	for (const int *fault = (const int[]){SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGABRT, 0}; *fault; fault++)
		sigdelset(&all, *fault);
	pthread_sigmask(SIG_SETMASK, &all, before);
	int result = take(word, patient);
	if (result < 0)
		pthread_sigmask(SIG_SETMASK, before, NULL);
	return result;
}

void relay_lock_release(uint64_t *word, const sigset_t *before)
{
	uint64_t self = relay_owner_self();
	__atomic_compare_exchange_n(word, &self, 0, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
	pthread_sigmask(SIG_SETMASK, before, NULL);
}
