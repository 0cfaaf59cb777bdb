/* SPDX-License-Identifier: MIT */
/* The lock of consumers: a word of shared memory that is 0, or the owner word (base/owner.h) of the thread that
 * consumes. A thread never waits for this lock, and may take it from a dead owner. base/robust_lock.h has the locks
 * that threads wait for. */
#ifndef RELAYFS_BASE_OWNER_LOCK_H
#define RELAYFS_BASE_OWNER_LOCK_H

#include "base/owner.h"

#include <errno.h>

/* The second try takes the lock from a dead owner. Further tries are necessary only if other threads change the word
 * meanwhile. */
enum { RELAY_OWNER_LOCK_TRIES = 16 };

/* Take the lock for `self`, the owner word of the calling thread. Returns 0; 1: it was taken from a dead thread;
 * -EBUSY: a living thread has it, perhaps this one. */
static inline int relay_owner_lock(uint64_t *word, uint64_t self)
{
	uint64_t owner = 0;
	for (int i = 0; i < RELAY_OWNER_LOCK_TRIES; i++) {
		/* Pairs with the release in relay_owner_unlock(): what the last owner stored is seen. */
		if (__atomic_compare_exchange_n(word, &owner, self, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
			return owner != 0;
		if (owner && relay_owner_alive(owner))
			return -EBUSY;
		/* The owner is dead, or has unlocked. The next try compares with the word that this one has loaded. */
	}
	return -EBUSY;
}

/* Release the lock, if `self` has it. */
static inline void relay_owner_unlock(uint64_t *word, uint64_t self)
{
	/* Pairs with the acquire in relay_owner_lock(). */
	__atomic_compare_exchange_n(word, &self, 0, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
}

/* True if a living thread other than the caller has the lock. */
static inline bool relay_owner_lock_is_held(const uint64_t *word)
{
	/* Relaxed: the caller loads nothing that the lock protects. */
	uint64_t owner = __atomic_load_n(word, __ATOMIC_RELAXED);
	return owner && owner != relay_owner_self() && relay_owner_alive(owner);
}

#endif
