/* SPDX-License-Identifier: MIT */
/* Reading and changing a latch, two counters that change together. <relayfs/layout.h> describes its words. */
#ifndef RELAYFS_BASE_LATCH_H
#define RELAYFS_BASE_LATCH_H

#include "base/cpu.h"

#include <relayfs/layout.h>
#include <stdbool.h>

/* The tries of a reader. Only a hostile writer can make all of them fail: the latch has to change each time while the
 * reader loads three words of one cache line. */
enum { RELAY_LATCH_TRIES = 1000 };

/* The tries of a writer. A try fails if another writer has changed the word in between. Writers that write records
 * cannot make all of them fail; the limit is for a hostile one. */
enum { RELAY_CHANGE_TRIES = 100000 };

/* Load both counters as they were at one moment. Returns false if the latch changed during each of RELAY_LATCH_TRIES
 * tries. */
static inline bool relay_latch_read(const struct relay_latch *latch, uint64_t *first, uint64_t *second)
{
	for (int i = 0; i < RELAY_LATCH_TRIES; i++) {
		/* Pairs with the store of `first` by relay_latch_store(), relay_latch_cmpxchg() or a section of
		 * base/rseq.h: what the writer stored before, as second[] and a record's bytes, is seen after. */
		uint64_t f = __atomic_load_n(&latch->first, __ATOMIC_ACQUIRE);
		/* Acquire keeps this load before the check of `first` below; pairs with the fence in
		 * relay_latch_store(). */
		uint64_t s = __atomic_load_n(&latch->second[f >> 63], __ATOMIC_ACQUIRE);
		if (__atomic_load_n(&latch->first, __ATOMIC_RELAXED) == f) {
			*first = f & ~RELAY_LATCH_INDEX;
			*second = s;
			return true;
		}
	}
	return false;
}

/* As relay_latch_read(), but both counters are 0 if that returns false. */
static inline void relay_latch_read_or_zero(const struct relay_latch *latch, uint64_t *first, uint64_t *second)
{
	if (!relay_latch_read(latch, first, second))
		*first = *second = 0;
}

/* Store both counters. Only one thread at a time may call it for a latch. */
static inline void relay_latch_store(struct relay_latch *latch, uint64_t first, uint64_t second)
{
	uint64_t index = ~__atomic_load_n(&latch->first, __ATOMIC_RELAXED) & RELAY_LATCH_INDEX;
	/* Pairs with the acquire of second[] in relay_latch_read(): a reader that sees the new second[] also sees the
	 * `first` that an earlier call stored, and tries again. */
	__atomic_thread_fence(__ATOMIC_RELEASE);
	__atomic_store_n(&latch->second[index >> 63], second, __ATOMIC_RELAXED);
	/* Pairs with the acquire of `first` in relay_latch_read(): second[] before `first`. */
	__atomic_store_n(&latch->first, (first & ~RELAY_LATCH_INDEX) | index, __ATOMIC_RELEASE);
}

/* Compare and swap a latch that is not in a buffer or ring of scheme rseq, so that only {first, second[0]} are in use.
 * Returns false if they were not the old values. */
static inline bool relay_latch_cmpxchg(struct relay_latch *latch, uint64_t old_first, uint64_t old_second,
                                       uint64_t new_first, uint64_t new_second)
{
	return relay_u128_cmpxchg((struct relay_u128 *)&latch->first, old_first, old_second, new_first, new_second);
}

#endif
