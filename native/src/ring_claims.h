/* SPDX-License-Identifier: MIT */
/* Who has reserved what in a ring, and what happens when they die. ring_claims.c tells how. */
#ifndef RELAYFS_RING_CLAIMS_H
#define RELAYFS_RING_CLAIMS_H

#include "pair.h"
#include "ring_map.h"

/* A claim that says only that it is in use. A position that no record has. */
#define RELAY_RING_MARKED (RELAY_CLAIM_PENDING | RELAY_POSITION_MASK)

/* A free claim for the calling thread, marked; NULL: all are in use by living threads. Async-signal-safe. */
struct relay_ring_claim *relay_ring_claim_take(struct relay_ring *ring);

/* The claims that threads have kept in this ring since it was mapped: let them look for some again. */
void relay_ring_claims_forget_kept(struct relay_ring *ring);

/* How a tail names a claim, in its top 16 bits. */
static inline uint64_t relay_ring_claim_name(const struct relay_ring *ring, const struct relay_ring_claim *claim)
{
	return (uint64_t)(claim - ring->claims + 1) << RELAY_OWNER_SHIFT;
}

/* State, in a marked claim, what is about to be reserved; visible to all before the change that reserves it. */
static inline void relay_ring_claim_state(struct relay_ring_claim *claim, uint64_t pos, uint64_t length,
                                          uint64_t number)
{
	/* Relaxed: only the word says that these hold, and it follows. */
	__atomic_store_n(&claim->length, length, __ATOMIC_RELAXED);
	__atomic_store_n(&claim->number, number, __ATOMIC_RELAXED);
	/* Pairs with the acquire in word_of(): what is claimed before that it is. */
	__atomic_store_n(&claim->word.first, RELAY_CLAIM_PENDING | (pos & RELAY_POSITION_MASK), __ATOMIC_RELEASE);
}

/* Not reserved; to be stated again. Never free in between: a signal handler would use it, and may keep it. */
static inline void relay_ring_claim_withdraw(struct relay_ring_claim *claim)
{
	__atomic_store_n(&claim->word.first, RELAY_RING_MARKED, __ATOMIC_RELEASE);
}

/* Done with it: committed, discarded or never reserved. */
static inline void relay_ring_claim_release(const struct relay_ring *ring, struct relay_ring_claim *claim)
{
	/* Pairs with word_of(): who finds no claim finds the header that was stored before. */
	__atomic_store_n(&claim->word.first, RELAY_CLAIM_FREE, __ATOMIC_RELEASE);
	if (__builtin_expect(claim - ring->claims >= RELAY_RING_N_CLAIMS_KEPT, 0))
		/* Pairs with the compare-and-swap in try_own(). */
		__atomic_store_n(&claim->owner, 0, __ATOMIC_RELEASE);
}

/* Reserved for certain: before anybody else helps. */
static inline void relay_ring_claim_confirm(struct relay_ring_claim *claim)
{
	/* Relaxed: the position is this thread's own. */
	uint64_t pos = __atomic_load_n(&claim->word.first, __ATOMIC_RELAXED) & RELAY_POSITION_MASK;
	uint64_t pending = RELAY_CLAIM_PENDING | pos;
	/* Fails if somebody has helped already. */
	__atomic_compare_exchange_n(&claim->word.first, &pending, RELAY_CLAIM_TAKEN | pos, false, __ATOMIC_ACQ_REL,
	                            __ATOMIC_RELAXED);
}

/* Mark the last reservation as taken, if it is in question. Call before changing tail or last. */
void relay_ring_claims_help(struct relay_ring *ring);

/* The taken claim of the record at this address, the latest; NULL: there is none. */
struct relay_ring_claim *relay_ring_claim_at(const struct relay_ring *ring, const void *record);

/* The reservation at pos keeps somebody waiting: if its owner is dead it becomes DISCARD. 1: it did; 0: its owner
 * lives; -ENOENT: nobody has reserved there, or has ended it meanwhile. */
int relay_ring_claims_bury_at(struct relay_ring *ring, uint64_t pos);

/* Records that became DISCARD because their owner died. */
uint64_t relay_ring_claims_torn(const struct relay_ring *ring);

/* In scheme lockless: let the producer position follow over all records whose header is in place. {pos, number} is where
 * it probably is. After the entry in `ready` that makes news, with a full barrier in between: a compare-and-swap that is
 * tried at once is one. Else of two records that become ready at once, each could miss the other. */
void relay_ring_publish(struct relay_ring *ring, uint64_t pos, uint64_t number);

#endif
