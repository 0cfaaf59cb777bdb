/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "ring/state.h"

#include "ring/remote.h"

#include <errno.h>

uint64_t relay_ring_damaged_at(const struct relay_ring *ring)
{
	return ring ? ring->damaged_at : 0;
}

const char *relay_ring_damage(struct relay_ring *ring)
{
	return ring ? relay_damage_text(&ring->damage) : "";
}

int relay_ring_check_magic(struct relay_ring *ring)
{
	/* Relaxed: it changes only if the file is truncated, and zero pages are mapped instead (base/mapping.c). */
	uint64_t magic = __atomic_load_n(&ring->state->geometry.magic, __ATOMIC_RELAXED);
	if (magic == RELAY_RING_MAGIC)
		return 0;
	return relay_damage_note(&ring->damage, "relay_ring_geometry.magic", 0, magic, "not", RELAY_RING_MAGIC);
}

/* Search for the next record from where the last call ended, or from the consumer's position if a consumer has
 * passed that. *skips: there are discarded or overwritten records, which readers will skip, before the place where
 * the search ended. Returns as relay_ring_find_next(). */
static int continue_search(struct relay_ring *ring, uint32_t *work, bool *skips)
{
	struct relay_ring_counts counts, *empty = &ring->empty;
	uint32_t length;
	if (relay_ring_check_magic(ring) || relay_ring_consumer_read(ring, &counts, true))
		return -EBADMSG;
	bool goes_on = ring->is_empty_known && ring->empty_from <= counts.position &&
	               counts.position <= empty->position && counts.missed <= empty->missed;
	if (!goes_on) {
		*empty = counts;
		ring->empty_from = counts.position;
	}
	ring->is_empty_known = true;
	uint64_t consumed = counts.position;
	counts = *empty;
	int found = relay_ring_find_next(ring, &counts, &length, work);
	if (found != -EBADMSG)
		*empty = counts;
	*skips = empty->position != consumed;
	return found;
}

int relay_ring_state(struct relay_ring *ring)
{
	if (ring->remote)
		return relay_ring_remote_state(ring->remote);
	/* Loaded before the search, as in relay_ring_find_next() in ring/consumer.c; pairs with
	 * relay_ring_stop() in ring/control.c. */
	bool closed = __atomic_load_n(&ring->producer->flags, __ATOMIC_ACQUIRE) & RELAY_CLOSED;
	uint32_t work = RELAY_RING_WORK;
	struct relay_ring_moment begin = relay_ring_moment(ring);
	bool skips = false;
	int found = continue_search(ring, &work, &skips);
	/* If a consumer advances, producers may store to the memory that this thread searches. */
	for (int i = 0; found == -EBADMSG && i < RELAY_RING_MOVE_TRIES && relay_ring_has_moved(ring, begin); i++) {
		relay_damage_forget(&ring->damage);
		begin = relay_ring_moment(ring);
		found = continue_search(ring, &work, &skips);
	}
	if (found == -EBADMSG)
		return RELAY_IS_DAMAGED;
	int bits = (closed ? RELAY_IS_CLOSED : 0) | (skips ? RELAY_HAS_DISCARDED : 0);
	if (found == 1)
		bits |= RELAY_HAS_DATA | (relay_owner_lock_is_held(&ring->consumer->lock) ? RELAY_IS_HELD : 0);
	return bits | (found == -EINPROGRESS ? RELAY_LOOK_AGAIN : 0);
}

int relay_ring_counts(struct relay_ring *ring, struct relay_ring_counts *counts)
{
	int err = relay_ring_consumer_read(ring, counts, true);
	if (err)
		return err;
	struct relay_ring_counts before = *counts;
	err = relay_ring_consumer_catch_up(ring, counts);
	/* Consumers of the kernel's format count no records, so overwritten records may have been read by them:
	 * keep the counts from before. */
	if (counts->foreign) {
		counts->records = before.records;
		counts->missed = before.missed;
	}
	return err;
}
