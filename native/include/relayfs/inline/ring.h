/* SPDX-License-Identifier: MIT */
/* Writing a record into a record ring of one CPU, for <relayfs/producer.h> and the library: the fast path, for a record for
 * which there is room. */
#ifndef RELAYFS_INLINE_RING_H
#define RELAYFS_INLINE_RING_H

#include <relayfs/inline/rseq.h>
#include <relayfs/ring.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Of <relayfs/producer.h>. */
int relay_ring_output_anyhow(struct relay_ring *ring, const void *data, size_t length, uint64_t flags);
int relay_rings_output_anyhow(struct relay_rings *rings, const void *data, size_t length, uint64_t flags);
int relay_ring_output_wake(struct relay_ring *ring, uint64_t pos, uint64_t flags);

/* The first fields of struct relay_ring. They are constant. */
#define RELAY_INLINE_RING_MEMBERS                                                                                        \
	struct relay_ring_producer *producer;                                                                            \
	struct relay_ring_consumer *consumer;                                                                            \
	unsigned char *data;                                                                                             \
	uint64_t mask; /* size - 1 */                                                                                    \
	uint32_t cpu;                                                                                                    \
	/* at RELAY_INLINE_VERSION, in scheme rseq, mode no-overwrite and without `times`: the longest record          \
	 * and 1; else 0. A ring that overwrites is full, so that it is always the slow path's. */ \
	uint32_t n_quick[RELAY_INLINE_VERSIONS]

struct relay_inline_ring {
	RELAY_INLINE_RING_MEMBERS;
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

/* Write a record, without a locked instruction or a fence, if there is room. Returns false: nothing was done. *pos: where it is. */
RELAY_INLINE bool relay_inline_output_at(const struct relay_inline_ring *ring, const void *data, size_t length,
                                         uint64_t *pos)
{
	if (__builtin_expect(length >= ring->n_quick[RELAY_INLINE_VERSION], 0))
		return false;
	/* Acquire, both: as relay_ring_produced() and relay_ring_consumed() in ring/ring.h. */
	uint64_t at = __atomic_load_n(&ring->producer->position.first, __ATOMIC_ACQUIRE);
	uint64_t consumed = __atomic_load_n(&ring->consumer->position, __ATOMIC_ACQUIRE);
	struct relay_ring_put put;
	put.expect = at;
	put.next = at + relay_ring_total(length);
	put.header = length | ((at & ring->mask) / RELAY_PAGE_BYTES + RELAY_RING_FIRST_PAGE) << 32;
	put.to = ring->data + (at & ring->mask) + RELAY_RING_HEADER_BYTES;
	*pos = at;
	if (__builtin_expect(at % 8 || put.next - consumed > ring->mask, 0))
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
	const struct relay_inline_ring *fast = (const struct relay_inline_ring *)(const void *)ring;
	uint64_t pos;
	if (__builtin_expect(!fast || !relay_inline_may_output(data, length, flags) ||
	                         !relay_inline_output_at(fast, data, length, &pos),
	                     0))
		return relay_ring_output_anyhow(ring, data, length, flags);
	return relay_inline_ring_is_armed(fast->producer) ? relay_ring_output_wake(ring, pos, flags) : 0;
}

/* relay_rings_output(), as above. */
RELAY_INLINE int relay_inline_rings_output(struct relay_rings *rings, const void *data, size_t length, uint64_t flags)
{
	uint32_t cpu = relay_rseq_cpu();
	struct relay_ring *ring = rings && cpu < rings->n ? rings->ring[cpu] : NULL;
	const struct relay_inline_ring *fast = (const struct relay_inline_ring *)(const void *)ring;
	uint64_t pos;
	if (__builtin_expect(!fast || !relay_inline_may_output(data, length, flags) ||
	                         !relay_inline_output_at(fast, data, length, &pos),
	                     0))
		return relay_rings_output_anyhow(rings, data, length, flags);
	return relay_inline_ring_is_armed(fast->producer) ? relay_ring_output_wake(ring, pos, flags) : 0;
}

#ifdef __cplusplus
}
#endif
#endif
