/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "base/robust_lock.h"

#include "base/clock.h"
#include "base/libc.h"
#include "base/owner.h"
#include "base/quiet.h"

#include <errno.h>
#include <sched.h>
#include <time.h>

/* Each yield may last as long as all others care to run: who is in a hurry, as a file server is, comes again instead. */
enum { YIELDS = 100, NONBLOCKING_YIELDS = 2, ASK_NS = 5000000, PAUSE_NS = 100000, MAX_PAUSES = 10000 };
/* Of a lock at which somebody has waited in vain, and how much longer each time that waiting has helped. */
enum { DOUBTED_YIELDS = 10, DOUBTED_PAUSES = 50 };
/* About two microseconds: longer than a holder takes that runs on another CPU. */
enum { SPINS = 64, ASK_AGAIN_NS = 10000000 };

/* Whom this thread found alive at a lock last, and when: to ask takes system calls, and a tracepoint may meet the same
 * holder at each event. */
static __thread struct {
	uint64_t holder, at_ns;
} asked RELAY_TLS;

static bool change_lock(uint64_t *word, uint64_t *from, uint64_t to)
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

static bool has_died(uint64_t holder)
{
	uint64_t now = relay_clock_ns(CLOCK_MONOTONIC);
	if (holder == asked.holder && now - asked.at_ns < ASK_AGAIN_NS)
		return false;
	asked.holder = holder;
	asked.at_ns = now;
	return !relay_owner_alive(holder);
}

static int take_lock_at_once(uint64_t *word, bool may_ask)
{
	uint64_t self = relay_owner_self(), holder = 0;
	for (int spins = 0; spins < SPINS; spins++) {
		/* Relaxed: change_lock() looks again. */
		holder = __atomic_load_n(word, __ATOMIC_RELAXED);
		if (!holder && change_lock(word, &holder, self))
			return 0;
		if (holder == self)
			return -EDEADLK;
		relay_relax();
	}
	return holder && may_ask && has_died(holder) && change_lock(word, &holder, self) ? 1 : -EBUSY;
}

/* In place of change_lock(), by who only wants to know. */
static bool see_lock(uint64_t *word, uint64_t *from, uint64_t to)
{
	uint64_t expected = *from;
	(void)to;
	/* Pairs with the release in relay_lock_release(). */
	*from = __atomic_load_n(word, __ATOMIC_ACQUIRE);
	return *from == expected;
}

/*
 * Note how waiting for a living holder ended. A lock that holds nonsense would cost each of many writes a second; a holder
 * that was stopped and goes on is waited for longer again, bit by bit.
 *
 * lost   pauses that are not made any more. Relaxed, and other threads' changes may get lost: it is an estimate.
 */
static void note_wait(uint32_t *lost, bool helped)
{
	uint32_t now = __atomic_load_n(lost, __ATOMIC_RELAXED), less = now < DOUBTED_PAUSES ? 0 : now - DOUBTED_PAUSES;
	__atomic_store_n(lost, helped ? less : MAX_PAUSES - DOUBTED_PAUSES, __ATOMIC_RELAXED);
}

/* act: change_lock() or see_lock() */
static int take_lock(uint64_t *word, bool may_block, uint32_t *lost,
                     bool (*act)(uint64_t *word, uint64_t *from, uint64_t to))
{
	uint64_t self = relay_owner_self(), asked_ns = 0;
	uint32_t less = __atomic_load_n(lost, __ATOMIC_RELAXED);
	int yields = !may_block ? NONBLOCKING_YIELDS : less ? DOUBTED_YIELDS : YIELDS;
	int most = may_block ? yields + MAX_PAUSES - (int)less : yields;
	for (int tries = 0; tries < most; tries++) {
		uint64_t holder = 0;
		if (act(word, &holder, self)) {
			if (tries && may_block && less)
				note_wait(lost, true);
			return 0;
		}
		if (holder == self)
			return -EDEADLK;
		if (is_time_to_ask(tries, yields, &asked_ns) && !relay_owner_alive(holder) && act(word, &holder, self))
			return 1;
		if (tries < yields)
			sched_yield();
		else
			nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
	}
	if (may_block)
		note_wait(lost, false);
	return -EBUSY;
}

/* Faults are not put off: they would kill. */
static void block_signals(sigset_t *before)
{
	sigset_t all;
	sigfillset(&all);
	for (const int *fault = (const int[]){SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGABRT, 0}; *fault; fault++)
		sigdelset(&all, *fault);
	pthread_sigmask(SIG_SETMASK, &all, before);
}

int relay_lock_take(uint64_t *word, enum relay_blocking blocking, uint32_t *lost, sigset_t *before)
{
	if (blocking == RELAY_QUIET)
		return take_lock_at_once(word, false);
	block_signals(before);
	int result = blocking == RELAY_NEVER_WAITS ? take_lock_at_once(word, true)
	                                           : take_lock(word, blocking == RELAY_MAY_BLOCK, lost, change_lock);
	if (result < 0)
		pthread_sigmask(SIG_SETMASK, before, NULL);
	return result;
}

int relay_lock_watch(uint64_t *word, enum relay_blocking blocking, uint32_t *lost)
{
	return take_lock(word, blocking == RELAY_MAY_BLOCK, lost, see_lock);
}

void relay_lock_release(uint64_t *word, const sigset_t *before)
{
	uint64_t self = relay_owner_self();
	__atomic_compare_exchange_n(word, &self, 0, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
	if (before)
		pthread_sigmask(SIG_SETMASK, before, NULL);
}
