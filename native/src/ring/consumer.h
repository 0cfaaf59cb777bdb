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

/* Where consumers are, to tell whether one has moved meanwhile: then what was read of them and of producers does not belong
 * together, and is no sign of damage. */
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
	/* What was loaded before is right if this is not so. */
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return ring->mode == RELAY_OVERWRITE && relay_ring_is_behind(pos, relay_ring_floor(ring));
}

/* The state. 0 or -EBADMSG. In mode overwrite only who looks follows others, because readers would not know how many records
 * they missed. */
int relay_ring_consumer_read(struct relay_ring *ring, struct relay_ring_counts *counts, bool only_looks);

/* Make `counts` the state. The caller has the lock. */
static inline void relay_ring_consumer_publish(struct relay_ring *ring, const struct relay_ring_counts *counts)
{
	struct relay_ring_consumer *consumer = ring->consumer;
	uint32_t next = __atomic_load_n(&consumer->current, __ATOMIC_RELAXED) + 1;
	consumer->counts[next & 1] = *counts;
	/* Pairs with the acquire in relay_ring_consumer_read(): the copy before the flip. */
	__atomic_store_n(&consumer->current, next, __ATOMIC_RELEASE);
	/* Pairs with the acquire in relay_ring_consumed(): our loads of the data before the producers' stores. */
	__atomic_store_n(&consumer->position, counts->position, __ATOMIC_RELEASE);
}

/* Overwrite mode: records were overwritten before the reader came. 0 or -EBADMSG. */
int relay_ring_consumer_catch_up(struct relay_ring *ring, struct relay_ring_counts *counts);

/*
 * Pass what is to be skipped, up to a record: 1 and how long it is, 0 or -EPIPE: there is none, -EBADMSG; -EINPROGRESS:
 * `*work` records have been passed, and there are more.
 */
int relay_ring_find_next(struct relay_ring *ring, struct relay_ring_counts *counts, uint32_t *length, uint32_t *work);

#endif
