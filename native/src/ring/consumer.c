/* SPDX-License-Identifier: MIT */
/*
 * The state of the consumer, and finding the next record.
 *
 * The state is kept in two copies, so that a consumer that is killed leaves either the old or the new state. The
 * kernel's consumer position, which producers load, is stored after the copy. A program that knows only the kernel's
 * format changes only this position; then relay_ring_consumer_read() corrects the state.
 */
#define _GNU_SOURCE
#include "ring/consumer.h"

#include "ring/claims.h"

#include <errno.h>

enum {
	READ_TRIES = 100, /* a try fails only if another thread consumed meanwhile */
	REAP_TRIES = 16,
	REAP_UNITS = 512 /* cost of checking whether an owner lives, in units of RELAY_RING_WORK */
};

/* The result of look_once(). */
enum look {
	LOOK_NOTHING, /* no record, or a BUSY one */
	LOOK_RECORD,
	LOOK_DISCARDED,
	LOOK_LAPPED, /* the record was overwritten meanwhile */
	LOOK_DAMAGED
};

/* --- the state --- */

struct relay_ring_moment relay_ring_moment(const struct relay_ring *ring)
{
	/* Relaxed: the consumer's state is loaded again later. */
	return (struct relay_ring_moment){__atomic_load_n(&ring->consumer->current, __ATOMIC_RELAXED),
	                                  __atomic_load_n(&ring->consumer->position, __ATOMIC_RELAXED)};
}

bool relay_ring_has_moved(const struct relay_ring *ring, struct relay_ring_moment since)
{
	/* Pairs with the release in relay_ring_consumer_publish(): a producer position that needed the consumer's
	 * room is loaded after the consumer position that made it. */
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	struct relay_ring_moment now = relay_ring_moment(ring);
	return now.current != since.current || now.position != since.position;
}

static int damaged_at(struct relay_ring *ring, uint64_t pos)
{
	ring->damaged_at = pos;
	return -EBADMSG;
}

/* Note which rule a state breaks. */
static __attribute__((noinline, cold)) int note_counts(struct relay_ring *ring, const struct relay_ring_counts *counts)
{
	struct relay_damage *damage = &ring->damage;
	uint64_t most = counts->position / RELAY_RING_HEADER_BYTES;
	if (relay_damage_above(damage, "the consumer position", 0, counts->position, INT64_MAX) ||
	    relay_damage_above(damage, "relay_ring_counts.records", 0, counts->records, most) ||
	    relay_damage_above(damage, "relay_ring_counts.discarded", 0, counts->discarded, most - counts->records) ||
	    relay_damage_above(damage, "relay_ring_counts.bytes", 0, counts->bytes, counts->position) ||
	    relay_damage_above(damage, "relay_ring_counts.missed", 0, counts->missed, counts->records))
		return damaged_at(ring, counts->position);
	return 0;
}

/* Check a state's fields against each other: each record takes a header of 8 bytes, and positions are
 * below 2^63. The argument is a private copy. A valid state takes one branch; note_counts() finds out
 * which rule another one breaks. */
static inline int check_counts(struct relay_ring *ring, const struct relay_ring_counts *counts)
{
	uint64_t all = counts->position | counts->records | counts->discarded | counts->bytes | counts->missed;
	/* No sum of two numbers below 2^63 overflows. */
	bool fits = !(all >> 63) & (counts->records + counts->discarded <= counts->position / RELAY_RING_HEADER_BYTES) &
	            (counts->bytes <= counts->position) & (counts->missed <= counts->records);
	return __builtin_expect(fits, 1) ? 0 : note_counts(ring, counts);
}

/* Correct the state after a consumer that counts no records has advanced the position. */
static void accept_position(struct relay_ring_counts *counts, uint64_t position)
{
	counts->foreign += position - counts->position;
	counts->position = position;
}

int relay_ring_consumer_read(struct relay_ring *ring, struct relay_ring_counts *counts, bool only_looks)
{
	const struct relay_ring_consumer *consumer = ring->consumer;
	for (int i = 0; i < READ_TRIES; i++) {
		/* Pairs with the release in relay_ring_consumer_publish() in ring/consumer.h:
		 * the copy before `current`. */
		uint32_t current = __atomic_load_n(&consumer->current, __ATOMIC_ACQUIRE);
		*counts = consumer->counts[current & 1];
		/* Pairs with the release in relay_ring_consumer_publish(), which stores `current` first: a position
		 * after counts->position, with `current` unchanged, was stored by a consumer of the kernel's format. */
		uint64_t position = relay_ring_consumed(ring);
		/* Pairs with the release fence in relay_ring_consumer_publish(): if a later store to this copy was
		 * loaded, the load below sees a later `current`. */
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		if (__atomic_load_n(&consumer->current, __ATOMIC_RELAXED) != current)
			continue;
		if (check_counts(ring, counts))
			return -EBADMSG;
		/* A consumer of the kernel's format has advanced the position. */
		bool follows = ring->mode != RELAY_OVERWRITE ||
		               (only_looks && !relay_ring_is_behind(relay_ring_produced(ring), position));
		if (relay_ring_is_behind(counts->position, position) && follows)
			accept_position(counts, position);
		return relay_damage_above(&ring->damage, "the consumer position", 0, counts->position, INT64_MAX);
	}
	return relay_damage_say(&ring->damage, "relay_ring_consumer.current keeps changing");
}

/* --- finding the next record --- */

/* In overwrite mode: load the position of the oldest record that is not overwritten, and the number of committed
 * records before it, as they were at one moment. Returns false if they kept changing. */
static bool read_oldest(const struct relay_ring *ring, uint64_t *oldest, uint64_t *records)
{
	if (ring->scheme == RELAY_RSEQ)
		return relay_latch_read(&ring->state->oldest, oldest, records);
	const struct relay_u128 *overwritten = &ring->producer->overwritten;
	for (int i = 0; i < RELAY_LATCH_TRIES; i++) {
		/* Pairs with the compare-and-swap in change_oldest() in ring/reserve.c, which changes both
		 * words, and `first` each time. */
		uint64_t first = __atomic_load_n(&overwritten->first, __ATOMIC_ACQUIRE);
		*records = __atomic_load_n(&overwritten->second, __ATOMIC_ACQUIRE);
		*oldest = first & ~RELAY_LATCH_INDEX;
		if (__atomic_load_n(&overwritten->first, __ATOMIC_RELAXED) == first)
			return true;
	}
	return false;
}

int relay_ring_consumer_catch_up(struct relay_ring *ring, struct relay_ring_counts *counts)
{
	uint64_t oldest, records;
	if (ring->mode != RELAY_OVERWRITE)
		return 0;
	if (!read_oldest(ring, &oldest, &records))
		return relay_damage_say(&ring->damage, "the position of the oldest record keeps changing");
	if (!relay_ring_is_behind(counts->position, oldest))
		return 0;
	const char *where = "the count of records before the oldest one";
	if (relay_damage_below(&ring->damage, where, 0, records, counts->records) ||
	    relay_damage_above(&ring->damage, where, 0, records, oldest / RELAY_RING_HEADER_BYTES))
		return -EBADMSG;
	counts->missed += records - counts->records;
	counts->records = records;
	counts->position = oldest;
	return 0;
}

/* The producer position is pos. Returns true if a record at pos is reserved, its owner was dead and its
 * claim was reaped: check again. */
static bool reap_at_position(struct relay_ring *ring, uint64_t pos)
{
	return relay_ring_reserved(ring) != pos && relay_ring_claims_reap_at(ring, pos) == 1;
}

/* The header at pos is BUSY: reap the reservation if its owner is dead. Returns LOOK_NOTHING, with *again set if the
 * header is no longer BUSY; LOOK_LAPPED; LOOK_DAMAGED: no claim holds the reservation. */
static enum look look_at_busy(struct relay_ring *ring, uint64_t pos, bool *again)
{
	int reaped = relay_ring_claims_reap_at(ring, pos);
	/* Loaded after the search for the claim. Pairs with end_record() in ring/output.c, which stores the header
	 * before it frees the claim. */
	bool busy = __atomic_load_n(relay_ring_length_at(ring, pos), __ATOMIC_ACQUIRE) & RELAY_RING_BUSY;
	if (relay_ring_is_lapped(ring, pos))
		return LOOK_LAPPED;
	*again = reaped == 1 || !busy;
	if (reaped != -ENOENT || !busy)
		return LOOK_NOTHING;
	relay_damage_note(&ring->damage, "the header at position []", pos, *relay_ring_length_at(ring, pos),
	                  "busy, though nobody has reserved it; without that flag it is at most", RELAY_RING_BUSY - 1);
	return LOOK_DAMAGED;
}

/* Note that the positions are inconsistent. */
static enum look look_at_positions(struct relay_ring *ring, uint64_t pos, uint64_t produced)
{
	if (relay_ring_is_lapped(ring, pos))
		return LOOK_LAPPED;
	if (pos % 8)
		relay_damage_note(&ring->damage, "the consumer position", 0, pos, "no multiple of", 8);
	else if (produced % 8)
		relay_damage_note(&ring->damage, "the producer position", 0, produced, "no multiple of", 8);
	else
		relay_damage_note(&ring->damage, "the producer position", 0, produced,
		                  "not less than a ring's size after the consumer position", pos);
	return LOOK_DAMAGED;
}

static enum look look_once(struct relay_ring *ring, uint64_t pos, uint32_t *length, bool *again)
{
	uint64_t produced = relay_ring_produced(ring);
	*again = false;
	if (pos % 8 || produced % 8 || produced - pos >= ring->size)
		return look_at_positions(ring, pos, produced);
	if (produced == pos) {
		*again = reap_at_position(ring, pos);
		return LOOK_NOTHING;
	}
	/* Pairs with end_record() in ring/output.c: the record's bytes before the header without BUSY. */
	*length = __atomic_load_n(relay_ring_length_at(ring, pos), __ATOMIC_ACQUIRE);
	if (relay_ring_is_lapped(ring, pos))
		return LOOK_LAPPED;
	if (!relay_ring_fits(ring, pos, *length, produced)) {
		relay_damage_note(&ring->damage, "the length at position []", pos,
		                  *length & ~(RELAY_RING_BUSY | RELAY_RING_DISCARD),
		                  "too long for a record that ends at or before", produced);
		return LOOK_DAMAGED;
	}
	if (*length & RELAY_RING_BUSY)
		return look_at_busy(ring, pos, again);
	bool discarded = *length & RELAY_RING_DISCARD;
	*length &= ~RELAY_RING_DISCARD;
	return discarded ? LOOK_DISCARDED : LOOK_RECORD;
}

static enum look look(struct relay_ring *ring, uint64_t pos, uint32_t *length, uint32_t *work)
{
	bool again;
	enum look found;
	int tries = 0;
	do {
		found = look_once(ring, pos, length, &again);
		if (found == LOOK_NOTHING)
			*work = *work > REAP_UNITS ? *work - REAP_UNITS : 0;
	} while (again && ++tries < REAP_TRIES);
	return found;
}

int relay_ring_find_next(struct relay_ring *ring, struct relay_ring_counts *counts, uint32_t *length, uint32_t *work)
{
	int laps = 0;
	for (; *work && laps < RELAY_RING_LAPPED_TRIES; --*work) {
		/* The flag is loaded before the records, so that records from before the ring was closed are still
		 * returned. Pairs with relay_ring_stop() in ring/control.c. */
		bool closed = __atomic_load_n(&ring->producer->flags, __ATOMIC_ACQUIRE) & RELAY_CLOSED;
		if (relay_ring_consumer_catch_up(ring, counts))
			return damaged_at(ring, counts->position);
		switch (look(ring, counts->position, length, work)) {
		case LOOK_RECORD:
			return 1;
		case LOOK_DISCARDED:
			counts->discarded++;
			counts->position += relay_ring_total(*length);
			break;
		case LOOK_LAPPED:
			laps++;
			break;
		case LOOK_DAMAGED:
			return damaged_at(ring, counts->position);
		case LOOK_NOTHING:
			return closed && relay_ring_reserved(ring) == counts->position ? -EPIPE : 0;
		}
		if (!*work)
			break;
	}
	return laps == RELAY_RING_LAPPED_TRIES ? 0 : -EINPROGRESS;
}
