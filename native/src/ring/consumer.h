/* SPDX-License-Identifier: MIT */
/* The state of a ring's consumer (struct relay_ring_counts), its lock, and finding the next
 * record. See ring/consumer.c. */
#ifndef RELAYFS_RING_CONSUMER_H
#define RELAYFS_RING_CONSUMER_H

#include "base/owner_lock.h"
#include "ring/ring.h"

/* How often to try again when producers have lapped the reader meanwhile. */
enum { RELAY_RING_LAPPED_TRIES = 1000 };

/* Take the consumer's lock for `self`, the owner word of the calling thread. Returns 0, also if the lock was a dead
 * thread's; -EBUSY: a living thread has it. */
static inline int relay_ring_consumer_lock(struct relay_ring *ring, uint64_t self)
{
	int result = relay_owner_lock(&ring->consumer->lock, self);
	return result < 0 ? result : 0;
}

static inline void relay_ring_consumer_unlock(struct relay_ring *ring, uint64_t self)
{
	relay_owner_unlock(&ring->consumer->lock, self);
}

/* The words that every consumer changes. If they change while other words are loaded, those may be of different
 * moments, so a contradiction between them is no damage. */
struct relay_ring_moment {
	uint32_t current;
	uint64_t position;
};
struct relay_ring_moment relay_ring_moment(const struct relay_ring *ring);
bool relay_ring_has_moved(const struct relay_ring *ring, struct relay_ring_moment since);

static inline bool relay_ring_is_behind(uint64_t pos, uint64_t other)
{
	return (int64_t)(other - pos) > 0;
}

/* True if the record at pos has been overwritten or may have been. */
static inline bool relay_ring_is_lapped(const struct relay_ring *ring, uint64_t pos)
{
	/* Pairs with change_oldest() in ring/reserve.c, which advances the floor before a producer stores over the
	 * record: if the result is false, the bytes that the caller loaded before are the record's. */
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return ring->mode == RELAY_OVERWRITE && relay_ring_is_behind(pos, relay_ring_floor(ring));
}

/* Copy the consumer's state and check it. Returns 0 or -EBADMSG. If a consumer of the kernel's format has advanced
 * only the position, the copy is corrected; in mode overwrite only with only_looks, because the number of missed
 * records would be unknown. */
int relay_ring_consumer_read(struct relay_ring *ring, struct relay_ring_counts *counts, bool only_looks);

/* Store the state `counts`. The caller has the lock. */
static inline void relay_ring_consumer_publish(struct relay_ring *ring, const struct relay_ring_counts *counts)
{
	struct relay_ring_consumer *consumer = ring->consumer;
	/* Relaxed: only the holder of the lock changes `current`. */
	uint32_t next = __atomic_load_n(&consumer->current, __ATOMIC_RELAXED) + 1;
	/* Pairs with the acquire fence in relay_ring_consumer_read(): a reader that sees a store to the copy also
	 * sees the change of `current` before it. */
	__atomic_thread_fence(__ATOMIC_RELEASE);
	consumer->counts[next & 1] = *counts;
	/* Pairs with the acquire in relay_ring_consumer_read(): the copy before `current`. */
	__atomic_store_n(&consumer->current, next, __ATOMIC_RELEASE);
	/* Pairs with the acquire in relay_ring_consumed(): this thread's loads of the data before
	 * the producers' stores to it. */
	__atomic_store_n(&consumer->position, counts->position, __ATOMIC_RELEASE);
}

/* In overwrite mode: count the records that were overwritten since the last read, and move `counts` to the oldest
 * one that is not. Returns 0 or -EBADMSG. */
int relay_ring_consumer_catch_up(struct relay_ring *ring, struct relay_ring_counts *counts);

/*
 * Move `counts` to the next record, past discarded and overwritten ones. Returns 1: counts->position is at a record of
 * *length bytes; 0: there is no committed record, or it was overwritten at each of many tries; -EPIPE: there is none,
 * and the ring is closed; -EBADMSG; -EINPROGRESS: *work is used up, and the next call continues from *counts. *work
 * decreases by 1 for each position, and by REAP_UNITS (ring/consumer.c) for one without a committed record.
 */
int relay_ring_find_next(struct relay_ring *ring, struct relay_ring_counts *counts, uint32_t *length, uint32_t *work);

#endif
