/* SPDX-License-Identifier: MIT */
/* In scheme lockless: let the producer position pass records whose headers are in place. ring/publish.c tells how. */
#ifndef RELAYFS_RING_PUBLISH_H
#define RELAYFS_RING_PUBLISH_H

#include "ring/ring.h"

/* Where a record lies. */
struct relay_ring_place {
	uint64_t pos, end; /* positions: of its header, behind it */
	uint64_t number;   /* records before it, modulo 2^48 */
};

/* Is there an entry for the record of this number, which lies at pos? Positions never come again, so that of an earlier
 * record is behind pos. */
static inline bool relay_ring_is_ready(const struct relay_ring *ring, uint64_t number, uint64_t pos)
{
	/* Pairs with the release of who put the header there. */
	uint64_t end = __atomic_load_n(&ring->ready[number % RELAY_RING_N_READY], __ATOMIC_ACQUIRE);
	return end - pos - RELAY_RING_HEADER_BYTES < ring->size;
}

/* Another CPU was quicker. Each try takes the words from it that it is changing: let it change them some more times, in a
 * few microseconds. */
void relay_ring_backoff(void);

/* The record at pos, if it has an entry, and those behind it that have. */
void relay_ring_drain_ready(struct relay_ring *ring, uint64_t pos, uint64_t number);

/* The producer position is place->pos, and this record will have no entry: so nobody else moves the position. */
static inline void relay_ring_pass(struct relay_ring *ring, const struct relay_ring_place *place)
{
	struct relay_u128 *position = &ring->producer->position;
	uint64_t next = (place->number + 1) & RELAY_RECORDS_MASK;
	/* Relaxed: who finds the position behind this record finds this. */
	__atomic_store_n(&position->second, next, __ATOMIC_RELAXED);
	/* Pairs with the acquire in relay_ring_produced(): the header before the position. */
	__atomic_store_n(&position->first, place->end, __ATOMIC_RELEASE);
	/* Unfenced: see relay_ring_mark_ready(). */
	if (__builtin_expect(relay_ring_is_ready(ring, next, place->end), 0))
		relay_ring_drain_ready(ring, place->end, next);
}

/* Another record before this one is still to be passed. Async-signal-safe. */
void relay_ring_mark_ready(struct relay_ring *ring, const struct relay_ring_place *place);

/* The same for a record of the dead, whatever its owner has come to do, but for the header, which is in place. By one
 * thread at a time. */
void relay_ring_publish_dead(struct relay_ring *ring, const struct relay_ring_place *place);

/* Has the producer position passed it, or will it soon, for certain? */
bool relay_ring_is_published(const struct relay_ring *ring, const struct relay_ring_place *place);

#endif
