/* SPDX-License-Identifier: MIT */
/* The state of a ring's consumer: how far consumers have come, whose turn it is, and the next record. ring/consumer.c tells how. */
#ifndef RELAYFS_RING_CONSUMER_H
#define RELAYFS_RING_CONSUMER_H

#include "base/owner_lock.h"
#include "ring/ring.h"

/* How often to look again when producers have come round meanwhile. */
enum { RELAY_RING_LAPPED_TRIES = 1000 };

/* Whose turn it is: 0, or -EBUSY: a living thread has it. A dead one's is taken over. */
static inline int relay_ring_consumer_lock(struct relay_ring *ring, uint64_t self)
{
	int result = relay_owner_lock(&ring->consumer->lock, self);
	return result < 0 ? result : 0;
}

static inline void relay_ring_consumer_unlock(struct relay_ring *ring, uint64_t self)
{
	relay_owner_unlock(&ring->consumer->lock, self);
}

/* The consumers' words at one moment. If they have changed since, values loaded meanwhile may not belong together, so that a
 * contradiction between them is no damage. */
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

/* Has the record at pos been overwritten, or may have been? */
static inline bool relay_ring_is_lapped(const struct relay_ring *ring, uint64_t pos)
{
	/* Pairs with change_oldest(), which moves the floor before anything is stored over the record: if the result is false,
	 * what the caller loaded before is the record's. */
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return ring->mode == RELAY_OVERWRITE && relay_ring_is_behind(pos, relay_ring_floor(ring));
}

/* Copy the consumer's state and check it. 0 or -EBADMSG. If a consumer of the kernel's format has moved the position alone, the
 * copy follows; in mode overwrite only with only_looks, because a reader could not tell how many records it missed. */
int relay_ring_consumer_read(struct relay_ring *ring, struct relay_ring_counts *counts, bool only_looks);

/* Make `counts` the state. The caller has the lock. */
static inline void relay_ring_consumer_publish(struct relay_ring *ring, const struct relay_ring_counts *counts)
{
	struct relay_ring_consumer *consumer = ring->consumer;
	uint32_t next = __atomic_load_n(&consumer->current, __ATOMIC_RELAXED) + 1;
	/* Pairs with the acquire fence in relay_ring_consumer_read(): whoever sees a store to the copy sees the `current` before. */
	__atomic_thread_fence(__ATOMIC_RELEASE);
	consumer->counts[next & 1] = *counts;
	/* Pairs with the acquire in relay_ring_consumer_read(): the copy before the flip. */
	__atomic_store_n(&consumer->current, next, __ATOMIC_RELEASE);
	/* Pairs with the acquire in relay_ring_consumed(): our loads of the data before the producers' stores. */
	__atomic_store_n(&consumer->position, counts->position, __ATOMIC_RELEASE);
}

/* Overwrite mode: records were overwritten before the reader came. 0 or -EBADMSG. */
int relay_ring_consumer_catch_up(struct relay_ring *ring, struct relay_ring_counts *counts);

/*
 * Skip discarded and overwritten records. 1: counts->position is at a record of *length bytes; 0: no record is committed there;
 * -EPIPE: none, and the ring is closed; -EBADMSG; -EINPROGRESS: *work is used up (1 for each position looked at, REAP_UNITS more
 * where nothing was found), and the next call goes on from *counts.
 */
int relay_ring_find_next(struct relay_ring *ring, struct relay_ring_counts *counts, uint32_t *length, uint32_t *work);

#endif
