/* SPDX-License-Identifier: MIT */
/* The claims of a relay buffer: reservations that are not committed yet, and switches under way.
 * buffer/claims.c describes the algorithm. */
#ifndef RELAYFS_BUFFER_CLAIMS_H
#define RELAYFS_BUFFER_CLAIMS_H

#include "buffer/buffer.h"

/* Take a free claim for the calling thread. Returns NULL where relay_claim_table_find() returns
 * UINT32_MAX. Async-signal-safe. */
struct relay_claim *relay_claim_take(struct rchan_buf *buf);

/* As relay_claim_take(), for a switch of sub-buffers: the claims that reservations may not take can be taken, too. */
struct relay_claim *relay_claim_take_for_switch(struct rchan_buf *buf);

/* Initialize buf->claim_table, after the buffer was mapped. */
void relay_claims_init(struct rchan_buf *buf);

/* End this thread's use of the claim; its word stays as it is. */
static inline void relay_claim_give_back(const struct rchan_buf *buf, struct relay_claim *claim)
{
	relay_claim_leave(&claim->owner, claim - buf->claims);
}

/* The bits of head.second that name this claim. */
static inline uint64_t relay_claim_owner_bits(const struct rchan_buf *buf, const struct relay_claim *claim)
{
	return (uint64_t)(claim - buf->claims + 1) << RELAY_OWNER_SHIFT;
}

/* The position of the claim's record. */
static inline uint64_t relay_claim_position(const struct relay_claim *claim)
{
	/* Relaxed: the position does not change while the claim is TAKEN. */
	return __atomic_load_n(&claim->word, __ATOMIC_RELAXED) & RELAY_POSITION_MASK;
}

/* Make the claim's word FREE because the change of head has failed. The claim stays in use, and
 * relay_claim_state() may be called again. */
static inline void relay_claim_withdraw(struct relay_claim *claim)
{
	__atomic_store_n(&claim->word, RELAY_CLAIM_FREE, __ATOMIC_RELEASE);
}

/* Free a claim that is committed, or whose reservation was not made. */
static inline void relay_claim_release(const struct rchan_buf *buf, struct relay_claim *claim)
{
	/* Pairs with word_of() in buffer/claims.c: the record's bytes before the claim's end. */
	__atomic_store_n(&claim->word, RELAY_CLAIM_FREE, __ATOMIC_RELEASE);
	relay_claim_give_back(buf, claim);
}

/* The claim of the reservation at address `to`, or NULL. */
struct relay_claim *relay_claim_at(struct rchan_buf *buf, const void *to);

/* Make a claim whose reservation was made a hole. A reader that passes the hole counts its records as discarded or as
 * torn, and frees the claim. */
void relay_claim_leave_hole(struct rchan_buf *buf, struct relay_claim *claim, bool discarded);

/* How many claims, from number 0 on, may have been taken. */
static inline uint32_t relay_claims_n_used(const struct rchan_buf *buf)
{
	return relay_claim_table_n_used(&buf->claim_table);
}

/* The number of claims that are holes at or after this position. */
uint32_t relay_claims_n_holes(const struct rchan_buf *buf, uint64_t from);

/* Mark the claim of the reservation or switch that changed head last as TAKEN and, if it is a switch, store the entries.
 * `word` is what the claim's word was, PENDING; {pos, second} is head, which names the claim. */
void relay_claims_complete(struct rchan_buf *buf, struct relay_claim *claim, uint64_t word, uint64_t pos,
                           uint64_t second);

/* Do that if it was not done yet. Call it before changing head and before using entries. */
static inline void relay_claims_help(struct rchan_buf *buf, uint64_t pos, uint64_t second)
{
	uint64_t owner = second >> RELAY_OWNER_SHIFT;
	if (owner == 0 || owner > RELAY_N_CLAIMS)
		return;
	struct relay_claim *claim = &buf->claims[owner - 1];
	/* Pairs as in word_of() in buffer/claims.c. */
	uint64_t word = __atomic_load_n(&claim->word, __ATOMIC_ACQUIRE);
	if (__builtin_expect((word & RELAY_CLAIM_STATE) == RELAY_CLAIM_PENDING, 0))
		relay_claims_complete(buf, claim, word, pos, second);
}

/* True if a living writer has not committed a record that lies in the memory of the sub-buffer at `next`, one lap
 * before or earlier. Reaps claims of dead writers. */
bool relay_claims_hold(struct rchan_buf *buf, uint64_t next);

/* True if a living writer has not committed its record in pos's sub-buffer. Reaps claims of dead writers. */
bool relay_claims_fill(struct rchan_buf *buf, uint64_t pos);

/* Free the holes in the memory of the sub-buffer at `next` that are of earlier laps, because that
 * sub-buffer overwrites them. */
void relay_claims_drop_holes(struct rchan_buf *buf, uint64_t next);

/* A consistent copy of a claim that is TAKEN or a hole. */
struct relay_claim_view {
	struct relay_claim *claim; /* NULL: none */
	uint64_t word, length, records;
	uint64_t n_records; /* how many it has */
	bool discarded;     /* for a hole: discarded, not torn */
};

/* The first claim that is TAKEN or a hole at or after pos, within pos's sub-buffer. */
struct relay_claim_view relay_claims_first(const struct rchan_buf *buf, uint64_t pos);

/* If the claim's owner is dead, give up what it claims; see relay_claim_table_reap(). Returns true
 * if the claim has changed. */
bool relay_claim_reap(struct rchan_buf *buf, struct relay_claim *claim);

/* True if a living thread has a reservation that is not committed. Reaps claims of dead threads. */
bool relay_claims_busy(struct rchan_buf *buf);

/* Free all claims that are TAKEN or holes, in a reset. */
void relay_claims_clear(struct rchan_buf *buf);

#endif
