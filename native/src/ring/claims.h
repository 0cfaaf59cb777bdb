/* SPDX-License-Identifier: MIT */
/* Who has reserved what in a ring, and what happens when they die. ring/claims.c tells how. */
#ifndef RELAYFS_RING_CLAIMS_H
#define RELAYFS_RING_CLAIMS_H

#include "base/claim_table.h"
#include "base/latch.h"
#include "ring/publish.h"

static inline uint64_t relay_ring_claim_word(const struct relay_ring_claim *claim)
{
	return __atomic_load_n(&claim->word.first, __ATOMIC_ACQUIRE);
}

/* The claim that this thread keeps in this ring, which may be in use; NULL: none. */
static inline struct relay_ring_claim *relay_ring_claim_kept(const struct relay_ring *ring)
{
	uint64_t kept = relay_claim_kept(&ring->claim_table);
	return __builtin_expect(kept < RELAY_N_CLAIMS, 1) ? &ring->claims[kept] : NULL;
}

/* Take a claim for the calling thread. NULL: as UINT32_MAX of relay_claim_table_find(). Async-signal-safe. */
struct relay_ring_claim *relay_ring_claim_take(struct relay_ring *ring);

/* The ring has been mapped: its claims are a table of claims. */
void relay_ring_claims_init(struct relay_ring *ring);

/* How a tail names a claim, in its top 16 bits. */
static inline uint64_t relay_ring_claim_name(const struct relay_ring *ring, const struct relay_ring_claim *claim)
{
	return (uint64_t)(claim - ring->claims + 1) << RELAY_OWNER_SHIFT;
}

/* The word that says what is about to be reserved. */
static inline uint64_t relay_ring_claim_pending(uint64_t pos)
{
	return RELAY_CLAIM_PENDING | (pos & RELAY_POSITION_MASK);
}

/* The word of what is reserved. */
static inline uint64_t relay_ring_claim_taken(uint64_t pos)
{
	return RELAY_CLAIM_TAKEN | (pos & RELAY_POSITION_MASK);
}

/* State, in a claim that is in use, what is about to be reserved; visible to all before the change that reserves it. */
static inline void relay_ring_claim_state(struct relay_ring_claim *claim, uint64_t pos, uint64_t length,
                                          uint64_t number)
{
	__atomic_store_n(&claim->length, length, __ATOMIC_RELAXED);
	__atomic_store_n(&claim->number, number, __ATOMIC_RELAXED);
	/* Pairs with the acquire in relay_ring_claim_word(): what is stated before that it is. */
	__atomic_store_n(&claim->word.first, relay_ring_claim_pending(pos), __ATOMIC_RELEASE);
}

/* Not reserved; to be stated again. It stays in use. */
static inline void relay_ring_claim_withdraw(struct relay_ring_claim *claim)
{
	__atomic_store_n(&claim->word.first, RELAY_CLAIM_FREE, __ATOMIC_RELEASE);
}

/* Done with it: committed, discarded or never reserved. */
static inline void relay_ring_claim_release(const struct relay_ring *ring, struct relay_ring_claim *claim)
{
	/* Pairs with relay_ring_claim_word(): who finds no claim finds the header that was stored before. */
	__atomic_store_n(&claim->word.first, RELAY_CLAIM_FREE, __ATOMIC_RELEASE);
	relay_claim_leave(&claim->owner, claim - ring->claims);
}

/* --- the last reservation --- */

/* Who made it, in the top 16 bits, and where. */
struct relay_ring_last {
	uint64_t pos; /* lockless: its end; rseq: the producer position */
	/* lockless: tail[0].second. rseq: `last`, which the section stores before the position; a section that is aborted between
	 * the two leaves in `last` a reservation that does not exist: see relay_ring_made_last(). */
	uint64_t who;
};

/* Load `pos` before `who`, and both before the claim's word: a claim that has made another reservation meanwhile does not fit
 * `pos`; and if the position was reserved by another claim, `who` names that claim by now. */
static inline struct relay_ring_last relay_ring_last(const struct relay_ring *ring)
{
	const struct relay_ring_producer *producer = ring->producer;
	bool rseq = ring->scheme == RELAY_RSEQ;
	uint64_t pos = __atomic_load_n(rseq ? &producer->position.first : &producer->tail[0].first, __ATOMIC_ACQUIRE);
	uint64_t who = __atomic_load_n(rseq ? &producer->last : &producer->tail[0].second, __ATOMIC_ACQUIRE);
	return (struct relay_ring_last){pos, who};
}

/* Did `claim`, whose word is PENDING at `pos`, make the reservation `last`? */
static inline bool relay_ring_made_last(const struct relay_ring *ring, const struct relay_ring_last *last,
                                        const struct relay_ring_claim *claim, uint64_t pos)
{
	if ((last->who & ~RELAY_RECORDS_MASK) != relay_ring_claim_name(ring, claim))
		return false;
	if (ring->scheme == RELAY_RSEQ)
		return ((last->who ^ pos) & RELAY_RECORDS_MASK) == 0 && (int64_t)(last->pos - pos) > 0;
	return pos + relay_ring_total(__atomic_load_n(&claim->length, __ATOMIC_RELAXED)) == last->pos;
}

/* Has this claim reserved at pos, and not ended it? */
static inline bool relay_ring_claim_holds(const struct relay_ring *ring, const struct relay_ring_claim *claim,
                                          uint64_t pos)
{
	struct relay_ring_last last = relay_ring_last(ring);
	uint64_t word = relay_ring_claim_word(claim);
	return word == relay_ring_claim_taken(pos) ||
	       (word == relay_ring_claim_pending(pos) && relay_ring_made_last(ring, &last, claim, pos));
}

/* Mark the last reservation as taken, if it is in question. Call before changing tail or last. */
void relay_ring_claims_help(struct relay_ring *ring);

/* The claim of the reservation at this address, the latest; NULL: there is none. */
struct relay_ring_claim *relay_ring_claim_at(const struct relay_ring *ring, const void *record);

/* Reap the reservation at pos, for which a reader or producer waits. 1: the header became DISCARD, or the claim has another
 * owner by now; 0: the owner lives or cannot be asked about, or another reaper is at work; -ENOENT: no claim holds pos. */
int relay_ring_claims_reap_at(struct relay_ring *ring, uint64_t pos);

/* Records that became DISCARD because their owner died. */
uint64_t relay_ring_claims_torn(const struct relay_ring *ring);

#endif
