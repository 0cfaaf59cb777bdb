/* SPDX-License-Identifier: MIT */
/* The claims of a ring: its reservations that have not ended, and their owners. See ring/claims.c. */
#ifndef RELAYFS_RING_CLAIMS_H
#define RELAYFS_RING_CLAIMS_H

#include "base/claim_table.h"
#include "base/latch.h"
#include "ring/publish.h"

static inline uint64_t relay_ring_claim_word(const struct relay_ring_claim *claim)
{
	/* Pairs with all stores of the word, here and in ring/claims.c: what was stored before the word is seen. */
	return __atomic_load_n(&claim->word.first, __ATOMIC_ACQUIRE);
}

/* Return the claim that this thread keeps in this ring, which may be in use; NULL: none. */
static inline struct relay_ring_claim *relay_ring_claim_kept(const struct relay_ring *ring)
{
	uint64_t kept = relay_inline_kept(&ring->claim_table.fast);
	return __builtin_expect(kept < RELAY_N_CLAIMS, 1) ? &ring->claims[kept] : NULL;
}

/* Take a claim for the calling thread. Returns NULL if relay_claim_table_find() returns
 * UINT32_MAX. Async-signal-safe. */
struct relay_ring_claim *relay_ring_claim_take(struct relay_ring *ring);

/* Initialize the claim table of a ring that has been mapped. */
void relay_ring_claims_init(struct relay_ring *ring);

/* A claim's number as it is in the top 16 bits of a tail. */
static inline uint64_t relay_ring_claim_name(const struct relay_ring *ring, const struct relay_ring_claim *claim)
{
	return (uint64_t)(claim - ring->claims + 1) << RELAY_OWNER_SHIFT;
}

/* The word of a reservation that is made. */
static inline uint64_t relay_ring_claim_taken(uint64_t pos)
{
	return RELAY_CLAIM_TAKEN | (pos & RELAY_POSITION_MASK);
}

/* Withdraw the announcement, because the reservation has failed. The claim stays in use. */
static inline void relay_ring_claim_withdraw(struct relay_ring_claim *claim)
{
	__atomic_store_n(&claim->word.first, RELAY_CLAIM_FREE, __ATOMIC_RELEASE);
}

/* Free the claim: its reservation was committed, discarded or not made. */
static inline void relay_ring_claim_release(const struct relay_ring *ring, struct relay_ring_claim *claim)
{
	/* Pairs with relay_ring_claim_word(): a thread that finds no claim finds the header that was stored before. */
	__atomic_store_n(&claim->word.first, RELAY_CLAIM_FREE, __ATOMIC_RELEASE);
	relay_claim_leave(&claim->owner, claim - ring->claims);
}

/* --- the last reservation --- */

/* The claim of the last reservation, in the top 16 bits of `tail_word`, and its position. */
struct relay_ring_last {
	uint64_t pos; /* lockless: its end; rseq: the producer position */
	/* lockless: tail[0].second. rseq: `last`, which the section stores before the position. If a section is
	 * aborted between the two, `last` names a reservation that does not exist: see relay_ring_made_last(). */
	uint64_t tail_word;
};

/* Load `pos`, then `tail_word`, both before the caller loads the claim's word. So if the claim has made another
 * reservation meanwhile, its word does not match `pos`; and if another claim has reserved the position,
 * `tail_word` names that claim by now. */
static inline struct relay_ring_last relay_ring_last(const struct relay_ring *ring)
{
	const struct relay_ring_producer *producer = ring->producer;
	bool rseq = ring->scheme == RELAY_RSEQ;
	uint64_t pos = __atomic_load_n(rseq ? &producer->position.first : &producer->tail[0].first, __ATOMIC_ACQUIRE);
	uint64_t tail_word = __atomic_load_n(rseq ? &producer->last : &producer->tail[0].second, __ATOMIC_ACQUIRE);
	return (struct relay_ring_last){pos, tail_word};
}

/* True if `claim`, whose word is PENDING at `pos`, made the reservation `last`. */
static inline bool relay_ring_made_last(const struct relay_ring *ring, const struct relay_ring_last *last,
                                        const struct relay_ring_claim *claim, uint64_t pos)
{
	if ((last->tail_word & ~RELAY_RECORDS_MASK) != relay_ring_claim_name(ring, claim))
		return false;
	if (ring->scheme == RELAY_RSEQ)
		return ((last->tail_word ^ pos) & RELAY_RECORDS_MASK) == 0 && (int64_t)(last->pos - pos) > 0;
	/* Relaxed: stored before the word, which the caller has loaded. */
	return pos + relay_ring_total(__atomic_load_n(&claim->length, __ATOMIC_RELAXED)) == last->pos;
}

/* Mark the claim of the last reservation as TAKEN if it is still PENDING. Call it before changing tail or `last`. */
void relay_ring_claims_help(struct relay_ring *ring);

/* Return the claim of the latest reservation at this address; NULL: there is none. */
struct relay_ring_claim *relay_ring_claim_at(const struct relay_ring *ring, const void *record);

/* Reap the reservation at pos if its owner is dead. Returns 1: its header became DISCARD, or the claim has
 * another owner by now; 0: the owner lives or cannot be checked, or another thread reaps it; -ENOENT: no claim
 * has a reservation at pos. */
int relay_ring_claims_reap_at(struct relay_ring *ring, uint64_t pos);

/* Return the number of records that became DISCARD because their owner died. */
uint64_t relay_ring_claims_torn(const struct relay_ring *ring);

#endif
