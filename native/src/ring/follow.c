/* SPDX-License-Identifier: MIT */
/*
 * Reading a ring beside its consumer.
 *
 *     follow     consumer              reserved
 *     v          v                     v
 *     |hAAA|hBBBB|hCC|hDDDD|dEE|BFFFFFF|....        h header  d DISCARD  B BUSY
 *     '-- consumed, and '
 *         not overwritten
 *
 * A record that was consumed stays in memory until a producer reserves its room again. In a ring with `times`, producers
 * store only into reserved room, and at most one header behind the end of all reservations. So a copy of the record at pos
 * is intact if, after the copy, this end is at most size - RELAY_RING_HEADER_BYTES ahead of pos; in mode overwrite, if
 * `oldest` has not passed pos; without `times`, if no consumer has passed pos. If the copy is not intact, the reader goes on with the oldest
 * record that was neither consumed nor overwritten, and counts the records in between as missed.
 */
#define _GNU_SOURCE
#include "ring/follow.h"

#include "base/latch.h"
#include "ring/consumer.h"

#include <errno.h>
#include <string.h>

/* Tries to copy a record before the caller has to call again. */
enum { COPY_TRIES = 100 };

void relay_ring_lost_by_cause(const struct relay_ring *ring, uint64_t records[3])
{
	const struct relay_ring_state *state = ring->state;
	const struct relay_latch *const latches[] = {&state->lost_full, &state->lost_too_large, &state->lost_disabled};
	uint64_t bytes;
	for (size_t i = 0; i < sizeof(latches) / sizeof(latches[0]); i++)
		relay_latch_read_or_zero(latches[i], &records[i], &bytes);
}

/* Return how many records the ring has refused so far. */
static uint64_t refused(const struct relay_ring *ring)
{
	uint64_t records[3];
	relay_ring_lost_by_cause(ring, records);
	return records[0] + records[1] + records[2];
}

int relay_ring_follow_start(struct relay_ring_follow *follow, struct relay_ring *ring)
{
	*follow = (struct relay_ring_follow){.ring = ring, .refused = refused(ring)};
	int err = relay_ring_consumer_read(ring, &follow->counts, true);
	if (!err)
		err = relay_ring_consumer_catch_up(ring, &follow->counts);
	follow->counts.missed = 0;
	return err;
}

/* True if the record at pos was not overwritten while the caller loaded it. */
static bool is_intact(const struct relay_ring *ring, uint64_t pos)
{
	if (ring->mode == RELAY_OVERWRITE)
		return !relay_ring_is_lapped(ring, pos);
	/* Without `times`, a producer may store before it reserves, but only into room that consumers have left. Pairs with
	 * the release in relay_ring_consumer_publish(): if the caller has loaded such a store, the next load of the
	 * consumer position finds that it is behind pos. */
	if (!ring->time_bytes) {
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		return !relay_ring_is_behind(pos, relay_ring_consumed(ring));
	}
	/* Pairs with relay_ring_take_place(), relay_rseq_ring_reserve() and relay_persist_ring_reserve(): a producer stores
	 * into reserved room only after these. So if the caller has loaded such a store, the next load of the reserved
	 * position finds the reservation. */
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return relay_ring_reserved(ring) - pos <= ring->size - RELAY_RING_HEADER_BYTES;
}

/* Move to the oldest record that was not consumed. Returns 0 or -EBADMSG. */
static int catch_up(struct relay_ring_follow *follow)
{
	struct relay_ring_counts *counts = &follow->counts, now;
	int err = relay_ring_consumer_read(follow->ring, &now, true);
	if (err || !relay_ring_is_behind(counts->position, now.position))
		return err;
	if (now.foreign > counts->foreign)
		follow->foreign += now.foreign - counts->foreign;
	now.missed = counts->missed;
	if (now.records > counts->records)
		now.missed += now.records - counts->records;
	*counts = now;
	return 0;
}

/* Copy the record at follow->counts.position. Returns false if it was overwritten meanwhile. */
static bool copy_here(const struct relay_ring_follow *follow, uint32_t length, struct relay_ring_copy *record, void *to,
                      size_t size)
{
	const struct relay_ring *ring = follow->ring;
	const uint64_t pos = follow->counts.position;
	const unsigned char *at = relay_ring_at(ring, pos) + RELAY_RING_HEADER_BYTES;
	const uint32_t time_bytes = relay_ring_time_of(ring, length);
	record->time = 0;
	record->length = length - time_bytes;
	memcpy(&record->time, at, time_bytes);
	memcpy(to, at + time_bytes, record->length < size ? record->length : size);
	record->behind = follow->counts;
	record->behind.position += relay_ring_total(length);
	record->behind.records++;
	record->behind.bytes += length;
	return is_intact(ring, pos);
}

int relay_ring_follow_copy(struct relay_ring_follow *follow, struct relay_ring_copy *record, void *to, size_t size,
                           uint32_t *work)
{
	struct relay_ring *ring = follow->ring;
	const uint64_t began = follow->counts.position;
	bool is_stuck = false;
	for (int tries = 0; tries < COPY_TRIES && *work; tries++) {
		struct relay_ring_counts counts = follow->counts;
		uint32_t length = 0;
		int result = relay_ring_find_next(ring, &counts, &length, work);
		if (!is_intact(ring, counts.position)) {
			relay_damage_forget(&ring->damage);
			if (ring->mode != RELAY_OVERWRITE && catch_up(follow))
				return -EBADMSG;
			/* Producers overwrite only what was consumed, and catch_up() has passed that. */
			is_stuck = ring->mode != RELAY_OVERWRITE && follow->counts.position == began;
			continue;
		}
		if (result == -EBADMSG)
			return result;
		follow->counts = counts;
		if (result == 1 && copy_here(follow, length, record, to, size))
			return 1;
		if (result != 1)
			return result == -EINPROGRESS ? -EAGAIN : 0;
	}
	if (is_stuck)
		return relay_damage_say(
		    &ring->damage, "the producer position is more than the ring's size ahead of the consumer position");
	return -EAGAIN;
}

void relay_ring_follow_pass(struct relay_ring_follow *follow, const struct relay_ring_copy *record)
{
	follow->counts = record->behind;
}

uint64_t relay_ring_follow_lost(struct relay_ring_follow *follow)
{
	uint64_t since = refused(follow->ring) - follow->refused;
	uint64_t lost = follow->counts.missed + (follow->foreign > 0) + since;
	/* Other programs can store anything in the words that count refused records, so the sum is checked. */
	if (since <= INT64_MAX && lost > follow->lost)
		follow->lost = lost;
	return follow->lost;
}
