/* SPDX-License-Identifier: MIT */
/* Scheme lockless: advancing the producer position past records whose headers are stored, which is called passing
 * them. An entry in relay_ring.ready says that the header of a record is stored. See ring/publish.c. */
#ifndef RELAYFS_RING_PUBLISH_H
#define RELAYFS_RING_PUBLISH_H

#include "ring/ring.h"

/* The place of a record. */
struct relay_ring_place {
	uint64_t pos, end; /* positions: of its header, and of the next one */
	uint64_t number;   /* records before it, modulo 2^48 */
};

/* True if the record of this number, at pos, has an entry. Positions are never reused, so an older
 * record's entry is not behind pos. */
static inline bool relay_ring_is_ready(const struct relay_ring *ring, uint64_t number, uint64_t pos)
{
	/* Pairs with the release in relay_ring_mark_ready() and relay_ring_publish_dead():
	 * the header before the entry. */
	uint64_t end = __atomic_load_n(&ring->ready[number % RELAY_RING_N_READY], __ATOMIC_ACQUIRE);
	return end - pos - RELAY_RING_HEADER_BYTES < ring->size;
}

/* Pause for a few microseconds, after another CPU has changed the tail first. Each try moves the cache line to this
 * CPU; the pause lets the other CPU make some more changes. */
void relay_ring_backoff(void);

/* Pass the record at pos, if it has an entry, and the following records that have one. */
void relay_ring_drain_ready(struct relay_ring *ring, uint64_t pos, uint64_t number);

/* Pass the record at place->pos, which is the producer position and has no entry, so no other
 * thread moves the position. */
static inline void relay_ring_pass(struct relay_ring *ring, const struct relay_ring_place *place)
{
	struct relay_u128 *position = &ring->producer->position;
	uint64_t next = (place->number + 1) & RELAY_RECORDS_MASK;
	/* Relaxed: published by the store of the position. */
	__atomic_store_n(&position->second, next, __ATOMIC_RELAXED);
	/* Pairs with the acquire in relay_ring_produced(): the header before the position. */
	__atomic_store_n(&position->first, place->end, __ATOMIC_RELEASE);
	/* Without a fence: relay_ring_mark_ready() makes the kernel fence this CPU. */
	if (__builtin_expect(relay_ring_is_ready(ring, next, place->end), 0))
		relay_ring_drain_ready(ring, place->end, next);
}

/* Make an entry for a record because earlier records are not passed yet, and pass the records that have one
 * by now. Async-signal-safe. */
void relay_ring_mark_ready(struct relay_ring *ring, const struct relay_ring_place *place);

/* Publish a record of a dead owner, which may have made any of the stores of relay_ring_show_place(). The header is
 * stored. Only one thread at a time, the reaper of its claim, may call it. */
void relay_ring_publish_dead(struct relay_ring *ring, const struct relay_ring_place *place);

/* True if the producer position has passed the record, or certainly will soon. */
bool relay_ring_is_published(const struct relay_ring *ring, const struct relay_ring_place *place);

#endif
