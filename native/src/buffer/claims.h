/* SPDX-License-Identifier: MIT */
/* Who holds what, and what happens when they die. buffer/claims.c tells how. */
#ifndef RELAYFS_BUFFER_CLAIMS_H
#define RELAYFS_BUFFER_CLAIMS_H

#include "buffer/buffer.h"

/* Take a free claim for the calling thread. NULL: as UINT32_MAX of relay_claim_table_find(). Async-signal-safe. */
struct relay_claim *relay_claim_take(struct rchan_buf *buf);

/* The same to leave a sub-buffer with, for which some claims are kept that no reservation takes. */
struct relay_claim *relay_claim_take_for_switch(struct rchan_buf *buf);

/* Set up buf->claim_table, after the buffer was mapped. */
void relay_claims_init(struct rchan_buf *buf);

/* End this thread's use of the claim; its word stays as it is. */
static inline void relay_claim_give_back(const struct rchan_buf *buf, struct relay_claim *claim)
{
	relay_claim_leave(&claim->owner, claim - buf->claims);
}

/* How head.second names a claim. */
static inline uint64_t relay_claim_owner_bits(const struct rchan_buf *buf, const struct relay_claim *claim)
{
	return (uint64_t)(claim - buf->claims + 1) << RELAY_OWNER_SHIFT;
}

/* Where the claim's record lies. */
static inline uint64_t relay_claim_position(const struct relay_claim *claim)
{
	/* Relaxed: constant while it is taken. */
	return __atomic_load_n(&claim->word, __ATOMIC_RELAXED) & RELAY_POSITION_MASK;
}

/* Store in `claim`, which is in use, the reservation that the caller will make at pos; call before head changes. */
static inline void relay_claim_state(struct relay_claim *claim, uint64_t pos, uint64_t length, uint64_t records,
                                     uint64_t bytes)
{
	/* Pairs with the acquire fences in help_switch() and view(): who sees what follows sees that the word changed before. */
	__atomic_thread_fence(__ATOMIC_RELEASE);
	/* Relaxed: only the word says that these hold, and it follows. */
	__atomic_store_n(&claim->length, length, __ATOMIC_RELAXED);
	__atomic_store_n(&claim->records, records, __ATOMIC_RELAXED);
	__atomic_store_n(&claim->bytes, bytes, __ATOMIC_RELAXED);
	/* Pairs with the acquire in relay_claims_help() and relay_claims_first(): the fields above are seen with the word. */
	__atomic_store_n(&claim->word, RELAY_CLAIM_PENDING | pos, __ATOMIC_RELEASE);
}

/* The change of head failed: the claim's word becomes FREE; the claim stays in use and may be stated again. */
static inline void relay_claim_withdraw(struct relay_claim *claim)
{
	__atomic_store_n(&claim->word, RELAY_CLAIM_FREE, __ATOMIC_RELEASE);
}

/* Done with it: committed, or never taken. */
static inline void relay_claim_release(const struct rchan_buf *buf, struct relay_claim *claim)
{
	/* Pairs with the acquire in relay_claims_first(): the payload before the end of the claim. */
	__atomic_store_n(&claim->word, RELAY_CLAIM_FREE, __ATOMIC_RELEASE);
	relay_claim_give_back(buf, claim);
}

/* Mark a reservation as TAKEN at once, because relay_claim_at(), by which commit finds it, looks at TAKEN claims only. */
static inline void relay_claim_confirm(struct relay_claim *claim)
{
	uint64_t pos = relay_claim_position(claim);
	uint64_t pending = RELAY_CLAIM_PENDING | pos;
	/* Fails if somebody has helped already. */
	__atomic_compare_exchange_n(&claim->word, &pending, RELAY_CLAIM_TAKEN | pos, false, __ATOMIC_ACQ_REL,
	                            __ATOMIC_RELAXED);
}

/* The taken claim whose record lies at `to`; NULL: there is none. */
struct relay_claim *relay_claim_at(const struct rchan_buf *buf, const void *to);

/* Taken, and to be skipped by readers, who count it as discarded or torn and free it. */
void relay_claim_leave_hole(struct rchan_buf *buf, struct relay_claim *claim, bool discarded);

/* How many claims there are to look at. */
static inline uint32_t relay_claims_n_used(const struct rchan_buf *buf)
{
	return relay_claim_table_n_used(&buf->claim_table);
}

/* How many claims wait as holes, at or behind this position, for readers. */
uint32_t relay_claims_n_holes(const struct rchan_buf *buf, uint64_t from);

/* Finish what the last reservation left to do, as head {pos, second} names it. Call before changing head
 * and before using the ledgers. */
void relay_claims_help(struct rchan_buf *buf, uint64_t pos, uint64_t second);

/* Does a living writer still copy into what lies a lap before the sub-buffer at `next`? */
bool relay_claims_hold(struct rchan_buf *buf, uint64_t next);

/* Does a living writer still fill what it reserved in the sub-buffer of `pos`? */
bool relay_claims_fill(struct rchan_buf *buf, uint64_t pos);

/* The sub-buffer at `next` takes the place of that of a lap before: forget the holes there. */
void relay_claims_drop_holes(struct rchan_buf *buf, uint64_t next);

/* A claim that was taken and not committed, or a hole, as it was at one moment. */
struct relay_claim_view {
	struct relay_claim *claim; /* NULL: none */
	uint64_t word, length, records;
	bool discarded; /* of a hole */
};

/* The first of them at or after pos in pos's sub-buffer. */
struct relay_claim_view relay_claims_first(const struct rchan_buf *buf, uint64_t pos);

/* If the claim's owner is dead, decide what becomes of it. true: it changed. */
bool relay_claim_reap(struct rchan_buf *buf, struct relay_claim *claim);

/* Reservations under way by living threads. */
bool relay_claims_busy(struct rchan_buf *buf);

/* Forget all claims, after a reset. */
void relay_claims_clear(struct rchan_buf *buf);

#endif
