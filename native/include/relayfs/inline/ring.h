/* SPDX-License-Identifier: MIT */
/* Writing a record into a record ring of one CPU, for <relayfs/producer.h> and the library: the fast path, for a record for
 * which there is room. */
#ifndef RELAYFS_INLINE_RING_H
#define RELAYFS_INLINE_RING_H

#include <relayfs/inline/claims.h>
#include <relayfs/ring.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Of <relayfs/producer.h>. */
int relay_ring_output_anyhow(struct relay_ring *ring, const void *data, size_t length, uint64_t flags);
int relay_rings_output_anyhow(struct relay_rings *rings, const void *data, size_t length, uint64_t flags);
int relay_ring_output_wake(struct relay_ring *ring, uint64_t pos, uint64_t flags);
void *relay_ring_reserve_anyhow(struct relay_ring *ring, size_t length, uint64_t flags);
void *relay_rings_reserve_anyhow(struct relay_rings *rings, size_t length, uint64_t flags);
int relay_ring_commit_anyhow(void *record, uint64_t flags);
int relay_ring_discard_anyhow(void *record, uint64_t flags);

/* The first fields of struct relay_ring. All but `floor` are constant. */
#define RELAY_INLINE_RING_MEMBERS                                                                                        \
	struct relay_ring_producer *producer;                                                                            \
	struct relay_ring_consumer *consumer;                                                                            \
	unsigned char *data;                                                                                             \
	uint64_t mask;  /* size - 1 */                                                                                   \
	uint64_t floor; /* all before it was consumed, or overwritten: see relay_inline_ring_has_room() */               \
	uint32_t cpu;                                                                                                    \
	/* at RELAY_INLINE_VERSION, in scheme rseq, mode no-overwrite and without `times`: the longest record          \
	 * and 1; else 0. A ring that overwrites is full, so that it is always the slow path's. */ \
	uint32_t n_quick[RELAY_INLINE_VERSIONS];                                                                         \
	struct relay_ring *const *entry /* in the table of open rings: this ring, as long as it is open */

struct relay_inline_ring {
	RELAY_INLINE_RING_MEMBERS;
	struct relay_inline_table table;
};

/* Bytes that a record of `length` bytes takes, with header and padding. */
RELAY_INLINE uint64_t relay_ring_total(uint64_t length)
{
	return (length + RELAY_RING_HEADER_BYTES + 7) & ~7ull;
}

/* True if readers may have to be woken after a record was published. Relaxed: pairs with relay_arm(), whose membarrier(2) orders
 * this load after the store of the record. */
RELAY_INLINE bool relay_inline_ring_is_armed(const struct relay_ring_producer *producer)
{
	return __builtin_expect(__atomic_load_n(&producer->flags, __ATOMIC_RELAXED) & RELAY_ARM_RECORD, 0);
}

/*
 * True if a record that ends at `end` has room, in mode no-overwrite. The consumer position is loaded only if the one
 * that was loaded last leaves no room: a consumer stores it for each record, and its cache line would come from the
 * consumer's CPU each time. Positions never decrease.
 */
RELAY_INLINE bool relay_inline_ring_has_room(struct relay_inline_ring *ring, uint64_t end)
{
	/* Pairs with the release below, by another thread, which has loaded the position as this one would: the
	 * consumer's loads of the data before this thread's stores to it. The ring is never quite full. */
	if (__builtin_expect(end - __atomic_load_n(&ring->floor, __ATOMIC_ACQUIRE) <= ring->mask, 1))
		return true;
	/* Acquire: as relay_ring_consumed() in ring/ring.h. */
	uint64_t consumed = __atomic_load_n(&ring->consumer->position, __ATOMIC_ACQUIRE);
	__atomic_store_n(&ring->floor, consumed, __ATOMIC_RELEASE);
	return end - consumed <= ring->mask;
}

/* Write a record, without a locked instruction or a fence, if there is room. Returns false: nothing was done. *pos: where it is. */
RELAY_INLINE bool relay_inline_output_at(struct relay_inline_ring *ring, const void *data, size_t length, uint64_t *pos)
{
	if (__builtin_expect(length >= ring->n_quick[RELAY_INLINE_VERSION], 0))
		return false;
	/* Acquire: as relay_ring_produced() in ring/ring.h. */
	uint64_t at = __atomic_load_n(&ring->producer->position.first, __ATOMIC_ACQUIRE);
	struct relay_ring_put put;
	put.expect = at;
	put.next = at + relay_ring_total(length);
	put.header = length | ((at & ring->mask) / RELAY_PAGE_BYTES + RELAY_RING_FIRST_PAGE) << 32;
	put.to = ring->data + (at & ring->mask) + RELAY_RING_HEADER_BYTES;
	*pos = at;
	if (__builtin_expect(at % 8 || !relay_inline_ring_has_room(ring, put.next), 0))
		return false;
	RELAY_PUBLISHES(&ring->producer->position.first);
	return relay_rseq_ring_record(ring->producer, &put, data, length, ring->cpu) == RELAY_RSEQ_DONE;
}

/* The flags of relay_ring_output(), and what it may be given. */
RELAY_INLINE bool relay_inline_may_output(const void *data, size_t length, uint64_t flags)
{
	const uint64_t all = (uint64_t)RELAY_RING_NO_WAKEUP | RELAY_RING_FORCE_WAKEUP | RELAY_RING_WILL_RETRY;
	return !(flags & ~all) && (data || !length) && length <= RELAY_INLINE_LENGTH_MAX;
}

/* relay_ring_output(). That the functions that are not inlined are called last saves registers where this is not inlined. */
RELAY_INLINE int relay_inline_output(struct relay_ring *ring, const void *data, size_t length, uint64_t flags)
{
	struct relay_inline_ring *fast = (struct relay_inline_ring *)(void *)ring;
	uint64_t pos = 0;
	if (__builtin_expect(!fast || !relay_inline_may_output(data, length, flags) ||
	                         !relay_inline_output_at(fast, data, length, &pos),
	                     0))
		return relay_ring_output_anyhow(ring, data, length, flags);
	return relay_inline_ring_is_armed(fast->producer) ? relay_ring_output_wake(ring, pos, flags) : 0;
}

/* The ring of this thread's CPU; NULL: none. */
RELAY_INLINE struct relay_ring *relay_inline_ring_of_cpu(const struct relay_rings *rings)
{
	uint32_t cpu = relay_rseq_cpu();
	return rings && cpu < rings->n ? rings->ring[cpu] : NULL;
}

/* relay_rings_output(), as above. */
RELAY_INLINE int relay_inline_rings_output(struct relay_rings *rings, const void *data, size_t length, uint64_t flags)
{
	struct relay_ring *ring = relay_inline_ring_of_cpu(rings);
	struct relay_inline_ring *fast = (struct relay_inline_ring *)(void *)ring;
	uint64_t pos = 0;
	if (__builtin_expect(!fast || !relay_inline_may_output(data, length, flags) ||
	                         !relay_inline_output_at(fast, data, length, &pos),
	                     0))
		return relay_rings_output_anyhow(rings, data, length, flags);
	return relay_inline_ring_is_armed(fast->producer) ? relay_ring_output_wake(ring, pos, flags) : 0;
}

/* --- reservations; ring/claims.c describes them --- */

/* Announce a reservation in a claim whose in_use is 1. Call it before the change of tail or position
 * that makes the reservation. */
RELAY_INLINE void relay_ring_claim_state(struct relay_ring_claim *claim, uint64_t pos, uint64_t length, uint64_t number)
{
	/* Relaxed: published by the store of the word. */
	__atomic_store_n(&claim->length, length, __ATOMIC_RELAXED);
	__atomic_store_n(&claim->number, number, __ATOMIC_RELAXED);
	/* Pairs with the acquire in relay_ring_claim_word(): length and number before the word. */
	__atomic_store_n(&claim->word.first, RELAY_CLAIM_PENDING | (pos & RELAY_POSITION_MASK), __ATOMIC_RELEASE);
}

/* Free a claim that its owner keeps: the reservation was committed, discarded or not made. */
RELAY_INLINE void relay_inline_ring_free(struct relay_ring_claim *claim)
{
	/* Pairs with relay_ring_claim_word(): a thread that finds no claim finds the header that was stored before. */
	__atomic_store_n(&claim->word.first, RELAY_CLAIM_FREE, __ATOMIC_RELEASE);
	relay_inline_leave(&claim->owner);
}

/* Reserve `length` bytes at *pos with claim *number, which this thread keeps, without a locked instruction. It is possible if this
 * thread has also made the last reservation, and there is room. Returns false: nothing was done. */
RELAY_INLINE bool relay_inline_ring_reserve_at(struct relay_inline_ring *ring, size_t length, uint64_t *number,
                                               uint64_t *pos)
{
	if (__builtin_expect(length >= ring->n_quick[RELAY_INLINE_VERSION], 0))
		return false;
	uint64_t kept = relay_inline_kept(&ring->table), name = (kept + 1) << RELAY_OWNER_SHIFT;
	/* Acquire, both: as in reserve_rseq() in ring/reserve.c. */
	uint64_t at = __atomic_load_n(&ring->producer->position.first, __ATOMIC_ACQUIRE);
	uint64_t last = __atomic_load_n(&ring->producer->last, __ATOMIC_ACQUIRE);
	struct relay_ring_put put;
	put.expect = at;
	put.next = at + relay_ring_total(length);
	put.header = (length | RELAY_RING_BUSY) | ((at & ring->mask) / RELAY_PAGE_BYTES + RELAY_RING_FIRST_PAGE) << 32;
	put.to = ring->data + (at & ring->mask) + RELAY_RING_HEADER_BYTES;
	if (__builtin_expect(kept >= RELAY_N_CLAIMS || (last & ~RELAY_RECORDS_MASK) != name || at % 8 ||
	                         !relay_inline_ring_has_room(ring, put.next),
	                     0))
		return false;
	struct relay_ring_claim *claim = (struct relay_ring_claim *)(void *)ring->table.claims + kept;
	if (__builtin_expect(!relay_claim_use(&claim->owner), 0))
		return false;
	relay_ring_claim_state(claim, at, length, 0);
	RELAY_PUBLISHES(&ring->producer->position.first);
	if (__builtin_expect(relay_rseq_ring_reserve(ring->producer, &put, last, name | (at & RELAY_RECORDS_MASK),
	                                             ring->cpu) != RELAY_RSEQ_DONE,
	                     0)) {
		relay_inline_ring_free(claim);
		return false;
	}
	*number = kept;
	*pos = at;
	return true;
}

/* Note the reservation that this thread has made in a ring, with a claim that it keeps. */
RELAY_INLINE void relay_inline_ring_note(struct relay_ring *ring, uint64_t number, uint64_t pos)
{
	struct relay_ring_latest *latest = &relay_thread_claims.latest_in_ring;
	latest->ring[RELAY_INLINE_VERSION] = ring;
	latest->entry = ((const struct relay_inline_ring *)(const void *)ring)->entry;
	latest->pos = pos;
	latest->claim = (uint32_t)number;
}

/* relay_ring_reserve(); NULL: nothing was done. */
RELAY_INLINE void *relay_inline_ring_reserve(struct relay_ring *ring, size_t length, uint64_t flags)
{
	struct relay_inline_ring *fast = (struct relay_inline_ring *)(void *)ring;
	uint64_t number = 0, pos = 0;
	if (__builtin_expect(!fast || flags & ~(uint64_t)RELAY_RING_WILL_RETRY ||
	                         !relay_inline_ring_reserve_at(fast, length, &number, &pos),
	                     0))
		return NULL;
	relay_inline_ring_note(ring, number, pos);
	return fast->data + (pos & fast->mask) + RELAY_RING_HEADER_BYTES;
}

/* End this thread's latest reservation: store the header's first word, with `bits`, and free the claim. Then the addresses of all
 * stores are known at once; to find the claim by dependent loads would take half as long as the rest. Returns false: nothing was done. */
RELAY_INLINE bool relay_inline_ring_end(void *record, uint32_t bits, uint64_t flags)
{
	const struct relay_ring_latest *latest = &relay_thread_claims.latest_in_ring;
	struct relay_ring *ring = latest->ring[RELAY_INLINE_VERSION];
	const struct relay_inline_ring *fast = (const struct relay_inline_ring *)(const void *)ring;
	/* Relaxed: the ring in which the caller has a record stays open. */
	if (__builtin_expect(!ring || __atomic_load_n(latest->entry, __ATOMIC_RELAXED) != ring ||
	                         flags & ~(uint64_t)(RELAY_RING_NO_WAKEUP | RELAY_RING_FORCE_WAKEUP),
	                     0))
		return false;
	const uint64_t pos = latest->pos;
	unsigned char *data = fast->data + (pos & fast->mask) + RELAY_RING_HEADER_BYTES;
	struct relay_ring_claim *claim = (struct relay_ring_claim *)(void *)fast->table.claims + latest->claim;
	/* Relaxed, both: while the reservation is open, other threads change its state only, not its position and length. */
	uint64_t word = __atomic_load_n(&claim->word.first, __ATOMIC_RELAXED);
	if (__builtin_expect(record != data || !relay_inline_is_reserved(word, pos), 0))
		return false;
	uint32_t length = (uint32_t)__atomic_load_n(&claim->length, __ATOMIC_RELAXED);
	/* Pairs with the acquires in is_record_at() in ring/consume.c and look_once() in ring/consumer.c: the
	 * record's bytes before the header without BUSY. */
	__atomic_store_n((uint32_t *)(void *)(data - RELAY_RING_HEADER_BYTES), length | bits, __ATOMIC_RELEASE);
	relay_inline_ring_free(claim);
	if (relay_inline_ring_is_armed(fast->producer))
		relay_ring_output_wake(ring, pos, flags);
	return true;
}

#ifdef __cplusplus
}
#endif
#endif
