/* SPDX-License-Identifier: MIT */
/* A robust lock in shared memory: the word says who has it (layout.h), and the dead lose it. Knows no rings. */
#ifndef RELAYFS_BASE_ROBUST_LOCK_H
#define RELAYFS_BASE_ROBUST_LOCK_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

/* How long to wait for a living holder. */
enum relay_blocking {
	RELAY_RETRIES_LATER, /* a moment: the file server, which tries again later */
	RELAY_MAY_BLOCK,     /* a second; of a lock at which that was in vain, some milliseconds until it helps again */
	RELAY_NEVER_WAITS,   /* some microseconds at most, without sleep or yield: a tracepoint */
	RELAY_QUIET          /* the same without a system call: of a thread that may make none (base/quiet.h) */
};

/*
 * Take it, with asynchronous signals blocked: a handler that wants it must not find its own thread in there. RELAY_QUIET
 * leaves them as they are, and the handler gets -EDEADLK.
 *
 * lost     this process's, one for each lock or several: 0 at first. What it has learnt from waiting in vain
 * before   what relay_lock_release() needs, which is given NULL for RELAY_QUIET
 *
 * Returns 0; 1: taken over from a thread that died with it; -EDEADLK: this thread has it; -EBUSY.
 */
int relay_lock_take(uint64_t *word, enum relay_blocking blocking, uint32_t *lost, sigset_t *before);
void relay_lock_release(uint64_t *word, const sigset_t *before);

/*
 * Wait until nobody has it, without taking it: whoever is stopped while he has it holds up all others, which a reader must not
 * do to producers. Returns 0; 1: a thread that died has it; -EDEADLK; -EBUSY.
 */
int relay_lock_watch(uint64_t *word, enum relay_blocking blocking, uint32_t *lost);

#endif
