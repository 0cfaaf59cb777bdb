/* SPDX-License-Identifier: MIT */
/* Reserving a record in a relay buffer, and committing it, for <relayfs/producer.h> and the library: the fast path, for a record that
 * fits behind another one in its sub-buffer. buffer/claims.c describes the algorithm. */
#ifndef RELAYFS_INLINE_RESERVE_H
#define RELAYFS_INLINE_RESERVE_H

#include <relayfs/inline/buffer.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Of <relayfs/producer.h>. */
void *relay_reserve_anyhow(struct rchan *chan, size_t length);
void *relay_try_reserve_anyhow(struct rchan *chan, size_t length);
void relay_commit_anyhow(struct rchan *chan, void *reserved);
void relay_commit_wake(struct rchan *chan, unsigned cpu, uint64_t pos);

/* Store in `claim`, whose in_use is 1, the reservation that the caller will make at pos.
 * Call it before head changes. */
RELAY_INLINE void relay_claim_state(struct relay_claim *claim, uint64_t pos, uint64_t length, uint64_t records,
                                    uint64_t bytes)
{
	/* Pairs with the acquire fences in help_switch() and view() in buffer/claims.c: a thread that sees one of
	 * the stores below also sees that the claim's word is no longer what it was before this call. */
	__atomic_thread_fence(__ATOMIC_RELEASE);
	/* Relaxed: published by the store of the word. */
	__atomic_store_n(&claim->length, length, __ATOMIC_RELAXED);
	__atomic_store_n(&claim->records, records, __ATOMIC_RELAXED);
	__atomic_store_n(&claim->bytes, bytes, __ATOMIC_RELAXED);
	/* Pairs with word_of() in buffer/claims.c: the fields above before the word. */
	__atomic_store_n(&claim->word, RELAY_CLAIM_PENDING | pos, __ATOMIC_RELEASE);
}

/* Free a claim that this thread keeps: its reservation is committed, or was not made. */
RELAY_INLINE void relay_inline_free(struct relay_claim *claim)
{
	/* Pairs with word_of() in buffer/claims.c: the record's bytes before the claim's end. */
	__atomic_store_n(&claim->word, RELAY_CLAIM_FREE, __ATOMIC_RELEASE);
	relay_inline_leave(&claim->owner);
}

/* Take a claim that this thread keeps. Returns false if it is in use, or a hole. */
RELAY_INLINE bool relay_inline_take(struct relay_claim *claim)
{
	if (__builtin_expect(!relay_claim_use(&claim->owner), 0))
		return false;
	/* Pairs with the stores of RELAY_CLAIM_FREE. A hole is freed by a reader or a lap. */
	if (__builtin_expect(__atomic_load_n(&claim->word, __ATOMIC_ACQUIRE) == RELAY_CLAIM_FREE, 1))
		return true;
	relay_inline_leave(&claim->owner);
	return false;
}

/* Reserve a record in the buffer of `cpu`. NULL: nothing was done. */
RELAY_INLINE void *relay_inline_reserve_here(const struct relay_inline_buf *buf, size_t length, uint32_t cpu)
{
	struct relay_control *control = buf->control;
	uint64_t number = relay_inline_kept(&buf->table);
	/* Acquire, both: as in relay_tx_load(). */
	uint64_t head = __atomic_load_n(&control->head.first, __ATOMIC_ACQUIRE);
	uint64_t second = __atomic_load_n(&control->head.second[head >> 63], __ATOMIC_ACQUIRE);
	uint64_t named = second >> RELAY_OWNER_SHIFT, pos = head & RELAY_POSITION_MASK;
	unsigned char *to;
	/* Another claim than this thread's would have to be helped. This thread's is free, or cannot be taken. */
	if (__builtin_expect(number >= RELAY_N_CLAIMS || (named && named != number + 1) ||
	                         length - sizeof(struct relay_hole) >= buf->n_reserve ||
	                         !relay_inline_place(buf, head, length, &to),
	                     0))
		return NULL;
	struct relay_claim *claim = (struct relay_claim *)(void *)buf->table.claims + number;
	if (__builtin_expect(!relay_inline_take(claim), 0))
		return NULL;
	relay_claim_state(claim, pos, length, second & RELAY_RECORDS_MASK, 0);
	RELAY_PUBLISHES(&control->head.first);
	second = ((second + 1) & RELAY_RECORDS_MASK) | (number + 1) << RELAY_OWNER_SHIFT;
	if (__builtin_expect(relay_rseq_reserve(control, head, (head + length) ^ RELAY_LATCH_INDEX, second, cpu) !=
	                         RELAY_RSEQ_DONE,
	                     0)) {
		relay_inline_free(claim);
		return NULL;
	}
	struct relay_latest *latest = &relay_thread_claims.latest;
	latest->pos = pos;
	latest->cpu = cpu;
	latest->claim = (uint32_t)number;
	return to;
}

/* As relay_reserve(); NULL: nothing was done. */
RELAY_INLINE void *relay_inline_reserve(struct rchan *chan, size_t length)
{
	const struct relay_inline_chan *fast = (const struct relay_inline_chan *)(const void *)chan;
	uint32_t cpu = relay_rseq_cpu();
	if (__builtin_expect(!fast || cpu >= fast->n_rseq[RELAY_INLINE_VERSION], 0))
		return NULL;
	return relay_inline_reserve_here(fast->buf[cpu], length, cpu);
}

/* relay_commit(), of the thread's latest reservation without a search. */
RELAY_INLINE void relay_inline_commit(struct rchan *chan, void *reserved)
{
	const struct relay_inline_chan *fast = (const struct relay_inline_chan *)(const void *)chan;
	const struct relay_latest latest = relay_thread_claims.latest;
	if (__builtin_expect(!fast || latest.cpu >= fast->n_rseq[RELAY_INLINE_VERSION], 0)) {
		relay_commit_anyhow(chan, reserved);
		return;
	}
	const struct relay_inline_buf *buf = fast->buf[latest.cpu];
	struct relay_claim *claim = (struct relay_claim *)(void *)buf->table.claims + latest.claim;
	/* Relaxed: while the reservation is open, other threads change its state only, not its position. */
	if (__builtin_expect(relay_inline_address(buf, latest.pos) != reserved ||
	                         !relay_inline_is_reserved(__atomic_load_n(&claim->word, __ATOMIC_RELAXED), latest.pos),
	                     0)) {
		relay_commit_anyhow(chan, reserved);
		return;
	}
	relay_inline_free(claim);
	/* Relaxed: as in relay_inline_is_armed(). */
	if (__builtin_expect(__atomic_load_n(&buf->control->flags, __ATOMIC_RELAXED) & RELAY_ARMED, 0))
		relay_commit_wake(chan, latest.cpu, latest.pos);
}

#ifdef __cplusplus
}
#endif
#endif
