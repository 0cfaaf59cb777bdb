/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "base/robust_lock.h"

#include "base/clock.h"
#include "base/cpu.h"
#include "base/libc.h"
#include "base/owner.h"

#include <errno.h>
#include <sched.h>
#include <time.h>

/* take_lock() calls sched_yield() YIELDS times, then sleeps for PAUSE_NS up to MAX_PAUSES times. One sched_yield() may
 * last as long as the time slices of all other threads; so a thread that must return soon, as the file server's, yields
 * NONBLOCKING_YIELDS times. CHECK_NS: see is_time_to_check(). */
enum { YIELDS = 100, NONBLOCKING_YIELDS = 2, CHECK_NS = 5000000, PAUSE_NS = 100000, MAX_PAUSES = 10000 };
/* The waits for a lock after one that ended with -EBUSY; each wait that ends with the lock adds PAUSES_AFTER_FAILURE to
 * the next. */
enum { YIELDS_AFTER_FAILURE = 10, PAUSES_AFTER_FAILURE = 50 };
/* try_lock() spins for about two microseconds, longer than a holder that runs on another CPU keeps the lock. */
enum { SPINS = 64, CHECK_AGAIN_NS = 10000000 };

/* The holder that this thread checked last, and when. The check makes system calls, and a tracepoint may find the same
 * living holder at each event. */
static __thread struct {
	uint64_t holder, at_ns;
} checked RELAY_TLS;

static bool change_lock(uint64_t *word, uint64_t *from, uint64_t to)
{
	/* Pairs with the release in relay_lock_release(): what the holder before stored is seen. */
	return __atomic_compare_exchange_n(word, from, to, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

/* True if take_lock() shall check whether the holder lives, which makes system calls: every `yields` tries, and
 * CHECK_NS after the last check, because on a busy machine a few yields may take long. */
static bool is_time_to_check(int tries, int yields, uint64_t *last_ns)
{
	uint64_t now = relay_clock_ns(CLOCK_MONOTONIC);
	bool is_time = tries % yields == yields - 1 || (tries && now - *last_ns >= CHECK_NS);
	if (is_time || tries == 0)
		*last_ns = now;
	return is_time;
}

/* True if the holder is dead. Returns false without a check if this thread has checked the same holder in the last
 * CHECK_AGAIN_NS. */
static bool has_died(uint64_t holder)
{
	uint64_t now = relay_clock_ns(CLOCK_MONOTONIC);
	if (holder == checked.holder && now - checked.at_ns < CHECK_AGAIN_NS)
		return false;
	checked.holder = holder;
	checked.at_ns = now;
	return !relay_owner_alive(holder);
}

/* Take the lock without sleep or yield; may_check: from a dead holder, too. Returns as relay_lock_take(). */
static int try_lock(uint64_t *word, bool may_check)
{
	uint64_t self = relay_owner_self(), holder = 0;
	for (int spins = 0; spins < SPINS; spins++) {
		/* Relaxed: change_lock() compares the word again. */
		holder = __atomic_load_n(word, __ATOMIC_RELAXED);
		if (!holder && change_lock(word, &holder, self))
			return 0;
		if (holder == self)
			return -EDEADLK;
		relay_relax();
	}
	return holder && may_check && has_died(holder) && change_lock(word, &holder, self) ? 1 : -EBUSY;
}

/* As change_lock(), but it compares the word without changing it: for relay_lock_watch(). */
static bool compare_lock(uint64_t *word, uint64_t *from, uint64_t to)
{
	uint64_t expected = *from;
	(void)to;
	/* Pairs with the release in relay_lock_release(). */
	*from = __atomic_load_n(word, __ATOMIC_ACQUIRE);
	return *from == expected;
}

/*
 * Note whether a wait ended with the lock, in wait_lost: the number of pauses by which later waits are shorter than
 * MAX_PAUSES. After a wait in vain that is nearly all of them; otherwise each write would wait a second for a lock
 * whose word is damaged. Each wait that ends with the lock makes the next one longer by PAUSES_AFTER_FAILURE.
 *
 * Relaxed, and a change by another thread at the same moment may be lost: the number is an estimate.
 */
static void note_wait(uint32_t *wait_lost, bool succeeded)
{
	uint32_t now = __atomic_load_n(wait_lost, __ATOMIC_RELAXED);
	uint32_t less = now < PAUSES_AFTER_FAILURE ? 0 : now - PAUSES_AFTER_FAILURE;
	__atomic_store_n(wait_lost, succeeded ? less : MAX_PAUSES - PAUSES_AFTER_FAILURE, __ATOMIC_RELAXED);
}

/* Call `act`, which is change_lock() or compare_lock(), until it succeeds or it is time to give up. Returns as
 * relay_lock_take(). */
static int take_lock(uint64_t *word, bool may_block, uint32_t *wait_lost,
                     bool (*act)(uint64_t *word, uint64_t *from, uint64_t to))
{
	uint64_t self = relay_owner_self(), checked_ns = 0;
	/* Relaxed: see note_wait(). */
	uint32_t less = __atomic_load_n(wait_lost, __ATOMIC_RELAXED);
	int yields = !may_block ? NONBLOCKING_YIELDS : less ? YIELDS_AFTER_FAILURE : YIELDS;
	int most = may_block ? yields + MAX_PAUSES - (int)less : yields;
	for (int tries = 0; tries < most; tries++) {
		uint64_t holder = 0;
		if (act(word, &holder, self)) {
			if (tries && may_block && less)
				note_wait(wait_lost, true);
			return 0;
		}
		if (holder == self)
			return -EDEADLK;
		if (is_time_to_check(tries, yields, &checked_ns) && !relay_owner_alive(holder) &&
		    act(word, &holder, self))
			return 1;
		if (tries < yields)
			sched_yield();
		else
			nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
	}
	if (may_block)
		note_wait(wait_lost, false);
	return -EBUSY;
}

/* Signals that faults raise are not blocked, because a fault whose signal is blocked kills the process. */
static void block_signals(sigset_t *before)
{
	sigset_t all;
	sigfillset(&all);
	for (const int *fault = (const int[]){SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGABRT, 0}; *fault; fault++)
		sigdelset(&all, *fault);
	pthread_sigmask(SIG_SETMASK, &all, before);
}

int relay_lock_take(uint64_t *word, enum relay_blocking blocking, uint32_t *wait_lost, sigset_t *before)
{
	if (blocking == RELAY_QUIET)
		return try_lock(word, false);
	block_signals(before);
	int result = blocking == RELAY_NEVER_WAITS
	                 ? try_lock(word, true)
	                 : take_lock(word, blocking == RELAY_MAY_BLOCK, wait_lost, change_lock);
	if (result < 0)
		pthread_sigmask(SIG_SETMASK, before, NULL);
	return result;
}

int relay_lock_watch(uint64_t *word, enum relay_blocking blocking, uint32_t *wait_lost)
{
	return take_lock(word, blocking == RELAY_MAY_BLOCK, wait_lost, compare_lock);
}

void relay_lock_release(uint64_t *word, const sigset_t *before)
{
	uint64_t self = relay_owner_self();
	/* Pairs with the acquires in change_lock() and compare_lock(): what this thread stored while it had the
	 * lock. */
	__atomic_compare_exchange_n(word, &self, 0, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
	if (before)
		pthread_sigmask(SIG_SETMASK, before, NULL);
}
