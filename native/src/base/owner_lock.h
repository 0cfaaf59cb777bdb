/* SPDX-License-Identifier: MIT */
/* A word of shared memory that says who consumes: an owner word (layout.h), or 0. Nobody waits for it, and the dead lose it.
 * base/robust_lock.h has the locks that writers wait for. */
#ifndef RELAYFS_BASE_OWNER_LOCK_H
#define RELAYFS_BASE_OWNER_LOCK_H

#include "base/owner.h"

#include <errno.h>

/* The second try takes the lock from a dead owner; each further one means that another thread changed the word meanwhile. */
enum { RELAY_OWNER_LOCK_TRIES = 16 };

/* 0; 1: taken over from a thread that died with it; -EBUSY: a living thread has it. */
static inline int relay_owner_lock(uint64_t *word, uint64_t self)
{
	uint64_t owner = 0;
	for (int i = 0; i < RELAY_OWNER_LOCK_TRIES; i++) {
		/* Acquire pairs with the release in relay_owner_unlock(): the state that the last owner left. */
		if (__atomic_compare_exchange_n(word, &owner, self, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
			return owner != 0;
		if (owner && relay_owner_alive(owner))
			return -EBUSY;
		/* The owner is dead or has unlocked: the next compare-and-swap expects exactly the word that was seen. */
	}
	return -EBUSY;
}

/* Store 0 if the word is `self`. Release: pairs with the acquire in relay_owner_lock(). */
static inline void relay_owner_unlock(uint64_t *word, uint64_t self)
{
	__atomic_compare_exchange_n(word, &self, 0, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
}

/* Does a living thread other than the caller hold the lock? */
static inline bool relay_owner_lock_is_held(const uint64_t *word)
{
	/* Relaxed: it may change at any time. */
	uint64_t owner = __atomic_load_n(word, __ATOMIC_RELAXED);
	return owner && owner != relay_owner_self() && relay_owner_alive(owner);
}

#endif
