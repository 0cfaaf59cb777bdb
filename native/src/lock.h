/* SPDX-License-Identifier: MIT */
/* A robust lock in shared memory: the word says who has it (layout.h), and the dead lose it. Knows no rings. */
#ifndef RELAYFS_LOCK_H
#define RELAYFS_LOCK_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * Take it, with asynchronous signals blocked: a handler that wants it must not find its own thread in there.
 *
 * patient  wait a second for a living holder; else a moment
 * before   what relay_lock_release() needs
 *
 * Returns 0; 1: taken over from a thread that died with it; -EDEADLK: this thread has it; -EBUSY.
 */
int relay_lock_take(uint64_t *word, bool patient, sigset_t *before);
void relay_lock_release(uint64_t *word, const sigset_t *before);

#endif
