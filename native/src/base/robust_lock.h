/* SPDX-License-Identifier: MIT */
/* A robust lock: a word of shared memory that is 0, or the owner word (base/owner.h) of the thread that has the lock. A
 * thread that waits may take the lock from a dead holder. */
#ifndef RELAYFS_BASE_ROBUST_LOCK_H
#define RELAYFS_BASE_ROBUST_LOCK_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

/* How long a thread waits for a living holder. */
enum relay_blocking {
	RELAY_RETRIES_LATER, /* for two calls of sched_yield(): the file server, which tries again later */
	RELAY_MAY_BLOCK,     /* about a second; after a wait that ended with -EBUSY, some milliseconds */
	RELAY_NEVER_WAITS,   /* for some microseconds, without sleep or yield: a tracepoint */
	RELAY_QUIET          /* the same without any system call: a tracepoint in a quiet thread (base/quiet.h) */
};

/*
 * Take the lock, and block asynchronous signals until relay_lock_release(), because a signal handler that needs the
 * lock would wait for its own thread. RELAY_QUIET does not block them; a handler gets -EDEADLK.
 *
 * wait_lost  one word of this process for one lock or for several, 0 at first: pauses by which to wait less, because
 *            earlier waits ended with -EBUSY
 * before     receives the signal mask for relay_lock_release(); with RELAY_QUIET, that gets NULL instead
 *
 * Returns 0; 1: taken from a thread that died with it; -EDEADLK: this thread has it; -EBUSY: a living thread has it.
 */
int relay_lock_take(uint64_t *word, enum relay_blocking blocking, uint32_t *wait_lost, sigset_t *before);
void relay_lock_release(uint64_t *word, const sigset_t *before);

/*
 * Wait until no thread has the lock, without taking it. A reader calls this, because producers would have to wait for a
 * reader that is stopped while it has the lock. Returns 0; 1: a dead thread has it; -EDEADLK: this thread has it;
 * -EBUSY: a living one has it.
 */
int relay_lock_watch(uint64_t *word, enum relay_blocking blocking, uint32_t *wait_lost);

#endif
