/* SPDX-License-Identifier: MIT */
/*
 * What is known of a ring: the one checked way from its shared memory to a file server's numbers, as buffer/stats.c is for
 * buffers. All fields are in range by construction and fit 63 bits; what is not is -EBADMSG, and noted.
 */
#define _GNU_SOURCE
#include "base/latch.h"
#include "ring/claims.h"
#include "ring/consume.h"
#include "store/options.h"

#include <errno.h>

static void tell_geometry(const struct relay_ring *ring, struct relay_ring_facts *facts)
{
	uint32_t flags = __atomic_load_n(&ring->producer->flags, __ATOMIC_ACQUIRE);
	*facts = (struct relay_ring_facts){.file_bytes = ring->mapping.bytes,
	                                   .cpu = ring->cpu,
	                                   .n_rings = ring->geometry.n_rings,
	                                   .closed = !!(flags & RELAY_CLOSED),
	                                   .disabled = !!(flags & RELAY_DISABLED)};
	relay_options_to_ring_facts(&ring->geometry, facts);
}

/* Scheme rseq: the producer position and how many records lie before it, at one moment. */
static int read_produced_rseq(struct relay_ring *ring, uint64_t *produced, uint64_t *records)
{
	const struct relay_ring_producer *producer = ring->producer;
	for (int i = 0; i < RELAY_LATCH_TRIES; i++) {
		*produced = relay_ring_produced(ring);
		bool other = __atomic_load_n(&producer->tail[0].first, __ATOMIC_ACQUIRE) != *produced;
		*records = __atomic_load_n(&producer->tail[other].second, __ATOMIC_ACQUIRE);
		if (relay_ring_produced(ring) == *produced)
			return 0;
	}
	return relay_damage_say(&ring->damage, "the producer position does not come to rest");
}

static int read_produced(struct relay_ring *ring, struct relay_ring_facts *facts)
{
	const struct relay_u128 *tail = &ring->producer->tail[0];
	struct relay_damage *damage = &ring->damage;
	uint64_t reserved;
	/* Before the count of records: each of them was reserved. */
	facts->torn_records = relay_ring_claims_torn(ring);
	if (ring->scheme == RELAY_RSEQ) {
		if (read_produced_rseq(ring, &facts->producer_position, &facts->records))
			return -EBADMSG;
		reserved = facts->producer_position;
	} else {
		facts->producer_position = relay_ring_produced(ring);
		/* In this order: records that come in between only make the position larger. */
		facts->records = __atomic_load_n(&tail->second, __ATOMIC_ACQUIRE) & RELAY_RECORDS_MASK;
		reserved = __atomic_load_n(&tail->first, __ATOMIC_ACQUIRE);
	}
	if (facts->producer_position % RELAY_RING_HEADER_BYTES)
		return relay_damage_note(damage, "the producer position", 0, facts->producer_position, "no multiple of",
		                         RELAY_RING_HEADER_BYTES);
	if (relay_damage_above(damage, "the producer position", 0, facts->producer_position, INT64_MAX) ||
	    relay_damage_above(damage, "the position up to which is reserved", 0, reserved, INT64_MAX) ||
	    relay_damage_above(damage, "the count of records reserved", 0, facts->records,
	                       reserved / RELAY_RING_HEADER_BYTES) ||
	    relay_damage_above(damage, "the count of torn records", 0, facts->torn_records, facts->records))
		return -EBADMSG;
	return 0;
}

static void tell_consumer(struct relay_ring_facts *facts, const struct relay_ring_counts *counts)
{
	facts->consumer_position = counts->position;
	facts->foreign_bytes = counts->foreign;
	/* Not negative: relay_ring_counts() has checked it. */
	facts->read_records = counts->records - counts->missed;
	facts->read_bytes = counts->bytes;
	facts->skipped_records = counts->discarded;
	facts->lost_overwritten_records = counts->missed;
}

static int read_positions(struct relay_ring *ring, struct relay_ring_facts *facts)
{
	for (int i = 0;; i++) {
		struct relay_ring_counts counts;
		/* The consumer first: it can only be behind what is read of the producers after it. */
		if (relay_ring_counts(ring, &counts) ||
		    relay_damage_above(&ring->damage, "relay_ring_counts.foreign", 0, counts.foreign,
		                       counts.position) ||
		    read_produced(ring, facts))
			return -EBADMSG;
		tell_consumer(facts, &counts);
		uint64_t produced = facts->producer_position;
		facts->unread_bytes = produced - counts.position;
		if (facts->unread_bytes < ring->size)
			return 0;
		int err = relay_damage_note(&ring->damage, "the producer position", 0, produced,
		                            "not less than a ring's size after the consumer position", counts.position);
		if (i == RELAY_RING_MOVE_TRIES || !relay_ring_is_lapped(ring, counts.position))
			return err;
		relay_damage_forget(&ring->damage);
	}
}

static int read_loss(struct relay_ring *ring, const struct relay_latch *latch, const char *where, uint64_t *records,
                     uint64_t *bytes)
{
	if (!relay_latch_read(latch, records, bytes))
		return relay_damage_say(&ring->damage, "the counters of lost records do not come to rest");
	return relay_damage_above(&ring->damage, where, 0, *bytes, INT64_MAX);
}

static int read_facts(struct relay_ring *ring, struct relay_ring_facts *facts)
{
	const struct relay_ring_state *state = ring->state;
	tell_geometry(ring, facts);
	if (relay_ring_check_magic(ring) || read_positions(ring, facts) ||
	    read_loss(ring, &state->lost_full, "relay_ring_state.lost_full.second", &facts->lost_full_records,
	              &facts->lost_full_bytes) ||
	    read_loss(ring, &state->lost_too_large, "relay_ring_state.lost_too_large.second",
	              &facts->lost_too_large_records, &facts->lost_too_large_bytes) ||
	    read_loss(ring, &state->lost_disabled, "relay_ring_state.lost_disabled.second",
	              &facts->lost_disabled_records, &facts->lost_disabled_bytes))
		return -EBADMSG;
	const uint64_t losses[] = {facts->lost_full_records, facts->lost_too_large_records,
	                           facts->lost_disabled_records, facts->lost_overwritten_records, facts->torn_records};
	for (size_t i = 0; i < sizeof(losses) / sizeof(losses[0]); i++)
		if (relay_damage_add(&ring->damage, "a part of all lost records", losses[i], &facts->lost_records))
			return -EBADMSG;
	facts->wakeups = __atomic_load_n(&state->wake_seq, __ATOMIC_RELAXED);
	return 0;
}

int relay_ring_facts(struct relay_ring *ring, struct relay_ring_facts *facts)
{
	if (ring->remote)
		return -EOPNOTSUPP;
	for (int i = 0;; i++) {
		struct relay_ring_moment begin = relay_ring_moment(ring);
		int err = read_facts(ring, facts);
		if (!err || i == RELAY_RING_MOVE_TRIES || !relay_ring_has_moved(ring, begin))
			return err;
		relay_damage_forget(&ring->damage);
	}
}

/* --- when data last moved --- */

void relay_ring_moved(const struct relay_ring *ring, uint64_t *count, uint64_t *time_ns)
{
	relay_latch_read_or_zero(&ring->state->moved, count, time_ns);
	if (*time_ns > INT64_MAX)
		*count = *time_ns = 0;
}

void relay_ring_keep_moved(struct relay_ring *ring, uint64_t count, uint64_t time_ns)
{
	relay_latch_store(&ring->state->moved, count, time_ns);
}
