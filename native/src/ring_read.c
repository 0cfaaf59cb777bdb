/* SPDX-License-Identifier: MIT */
/*
 * Consuming a ring.
 *
 *     consumer position        seen                      producer position
 *          v                    v                         v
 *     |hAAAAAA|hBB|dCCCC|hDDDDDD|hEEEE|BFFFFFF|hGG.........|         h header  d DISCARD  B BUSY
 *     '------- next() x 3 ------'      '-- next() says 0 until F is ended
 *
 * next() walks a copy of the consumer's state and release() makes that the state. The state is kept in two copies, so
 * that a consumer that is killed leaves the old or the new; the kernel's consumer position, which producers look at,
 * follows. A program that consumes by the kernel's format alone moves only that: then the state follows it.
 *
 * In overwrite mode the memory may change under a reader's eyes: it copies, and was in time if `oldest` is not past the
 * record afterwards.
 */
#define _GNU_SOURCE
#include "owner.h"
#include "ring_claims.h"

#include <errno.h>
#include <string.h>

enum { READ_TRIES = 1000, LAPPED_TRIES = 1000 };

/* What there is at a position. */
enum look {
	LOOK_NOTHING, /* or BUSY */
	LOOK_RECORD,
	LOOK_DISCARDED,
	LOOK_LAPPED, /* it was overwritten meanwhile */
	LOOK_DAMAGED
};

/* --- the consumer's state --- */

static int lock(struct relay_ring *ring)
{
	uint64_t *word = &ring->consumer->lock, self = relay_owner_self(), holder = 0;
	/* Acquire pairs with the release in unlock(): the state that the last holder left. */
	while (!__atomic_compare_exchange_n(word, &holder, self, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
		if (holder && relay_owner_alive(holder))
			return -EBUSY;
	/* Dead: the next round takes the lock from exactly that holder. */
	return 0;
}

static void unlock(struct relay_ring *ring)
{
	uint64_t self = relay_owner_self();
	__atomic_compare_exchange_n(&ring->consumer->lock, &self, 0, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
}

static bool is_behind(uint64_t pos, uint64_t other)
{
	return (int64_t)(other - pos) > 0;
}

/* The state; false: it does not come to rest, which no honest consumer causes. */
static bool read_counts(const struct relay_ring *ring, struct relay_ring_counts *counts)
{
	const struct relay_ring_consumer *consumer = ring->consumer;
	for (int i = 0; i < READ_TRIES; i++) {
		uint32_t current = __atomic_load_n(&consumer->current, __ATOMIC_ACQUIRE);
		*counts = consumer->counts[current & 1];
		/* A copy is rewritten only after `current` has moved on from it. */
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		if (__atomic_load_n(&consumer->current, __ATOMIC_RELAXED) != current)
			continue;
		/* Somebody else consumes by the kernel's format. */
		uint64_t position = relay_ring_consumed(ring);
		if (ring->mode != RELAY_OVERWRITE && is_behind(counts->position, position))
			counts->position = position;
		return true;
	}
	return false;
}

/* Make `counts` the state. The caller has the lock. */
static void publish(struct relay_ring *ring, const struct relay_ring_counts *counts)
{
	struct relay_ring_consumer *consumer = ring->consumer;
	uint32_t next = __atomic_load_n(&consumer->current, __ATOMIC_RELAXED) + 1;
	consumer->counts[next & 1] = *counts;
	/* Pairs with the acquire in read_counts(): the copy before the flip. */
	__atomic_store_n(&consumer->current, next, __ATOMIC_RELEASE);
	/* Pairs with the acquire in relay_ring_consumed(): our loads of the data before the producers' stores. */
	__atomic_store_n(&consumer->position, counts->position, __ATOMIC_RELEASE);
}

/* --- looking --- */

/* Overwrite mode: records were overwritten before the reader came. false: the pair does not come to rest. */
static bool catch_up(const struct relay_ring *ring, struct relay_ring_counts *counts)
{
	uint64_t oldest, records;
	if (ring->mode != RELAY_OVERWRITE)
		return true;
	if (!relay_pair_read(&ring->state->oldest, &oldest, &records))
		return false;
	if (is_behind(counts->position, oldest)) {
		counts->missed += records - counts->records;
		counts->records = records;
		counts->position = oldest;
	}
	return true;
}

static bool is_lapped(const struct relay_ring *ring, uint64_t pos)
{
	/* What was loaded before is right if this is not so. */
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return ring->mode == RELAY_OVERWRITE && is_behind(pos, relay_ring_floor(ring));
}

/* Nothing is published at pos: perhaps because who has reserved there died. true: look again. */
static bool is_held_up(struct relay_ring *ring, uint64_t pos)
{
	return relay_ring_reserved(ring) != pos && relay_ring_claims_bury_at(ring, pos) == 1;
}

/* BUSY. true: not any more, look again. */
static enum look look_at_busy(struct relay_ring *ring, uint64_t pos, bool *again)
{
	int buried = relay_ring_claims_bury_at(ring, pos);
	bool busy = __atomic_load_n(relay_ring_length_at(ring, pos), __ATOMIC_ACQUIRE) & RELAY_RING_BUSY;
	if (is_lapped(ring, pos))
		return LOOK_LAPPED;
	*again = buried == 1 || !busy;
	return buried == -ENOENT && busy ? LOOK_DAMAGED : LOOK_NOTHING;
}

static enum look look_once(struct relay_ring *ring, uint64_t pos, uint32_t *length, bool *again)
{
	uint64_t produced = relay_ring_produced(ring);
	*again = false;
	if (pos % 8 || produced % 8 || produced - pos >= ring->size)
		return is_lapped(ring, pos) ? LOOK_LAPPED : LOOK_DAMAGED;
	if (produced == pos) {
		*again = is_held_up(ring, pos);
		return LOOK_NOTHING;
	}
	/* Pairs with the release that ends a reservation: the payload before it. */
	*length = __atomic_load_n(relay_ring_length_at(ring, pos), __ATOMIC_ACQUIRE);
	if (is_lapped(ring, pos))
		return LOOK_LAPPED;
	if (!relay_ring_fits(ring, pos, *length, produced))
		return LOOK_DAMAGED;
	if (*length & RELAY_RING_BUSY)
		return look_at_busy(ring, pos, again);
	bool discarded = *length & RELAY_RING_DISCARD;
	*length &= ~RELAY_RING_DISCARD;
	return discarded ? LOOK_DISCARDED : LOOK_RECORD;
}

static enum look look(struct relay_ring *ring, uint64_t pos, uint32_t *length)
{
	bool again;
	enum look found;
	int tries = 0;
	do
		found = look_once(ring, pos, length, &again);
	while (again && ++tries < READ_TRIES);
	return found;
}

/* Pass what is to be skipped, up to a record: 1 and how long it is, 0 or -EPIPE: there is none, -EBADMSG. */
static int find_next(struct relay_ring *ring, struct relay_ring_counts *counts, uint32_t *length)
{
	for (int laps = 0; laps < LAPPED_TRIES;) {
		/* Before the look: what was there when the ring was closed is still given. */
		bool closed = __atomic_load_n(&ring->producer->flags, __ATOMIC_ACQUIRE) & RELAY_CLOSED;
		enum look found = catch_up(ring, counts) ? look(ring, counts->position, length) : LOOK_DAMAGED;
		switch (found) {
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
			ring->damaged_at = counts->position;
			return -EBADMSG;
		case LOOK_NOTHING:
			return closed && relay_ring_reserved(ring) == counts->position ? -EPIPE : 0;
		}
	}
	return 0;
}

static void pass(struct relay_ring_counts *counts, uint32_t length)
{
	counts->position += relay_ring_total(length);
	counts->records++;
	counts->bytes += length;
}

/* --- in place --- */

static int begin(struct relay_ring *ring)
{
	if (ring->mode == RELAY_OVERWRITE)
		return -EOPNOTSUPP;
	if (ring->consuming)
		return 0;
	int err = lock(ring);
	if (err)
		return err;
	if (!read_counts(ring, &ring->seen)) {
		unlock(ring);
		return -EBADMSG;
	}
	ring->consuming = true;
	ring->n_held = 0;
	return 0;
}

void relay_ring_abort(struct relay_ring *ring)
{
	if (ring->consuming)
		unlock(ring);
	ring->consuming = false;
	ring->n_held = 0;
}

void relay_ring_release(struct relay_ring *ring)
{
	if (ring->consuming)
		publish(ring, &ring->seen);
	relay_ring_abort(ring);
}

int relay_ring_next(struct relay_ring *ring, const void **data, size_t *length)
{
	uint32_t bytes = 0;
	int result = begin(ring);
	if (result)
		return result;
	uint64_t before = ring->seen.position;
	result = find_next(ring, &ring->seen, &bytes);
	if (result == 1) {
		*data = relay_ring_at(ring, ring->seen.position) + RELAY_RING_HEADER_BYTES;
		*length = bytes;
		pass(&ring->seen, bytes);
		ring->n_held++;
	} else if (!ring->n_held) {
		/* Nothing is held: what was skipped makes room now. */
		if (ring->seen.position != before || ring->seen.position != relay_ring_consumed(ring))
			publish(ring, &ring->seen);
		relay_ring_abort(ring);
	}
	return result;
}

int relay_ring_consume(struct relay_ring *ring, int (*each)(void *context, const void *data, size_t length),
                       void *context, unsigned max)
{
	const void *data;
	size_t length;
	int n = 0, result = 0;
	if (ring->n_held)
		return -EALREADY;
	while ((!max || (unsigned)n < max) && (result = relay_ring_next(ring, &data, &length)) == 1) {
		int stop = each(context, data, length);
		/* Producers get the room of each record at once; the lock is kept. */
		publish(ring, &ring->seen);
		ring->n_held = 0;
		n++;
		if (stop < 0) {
			relay_ring_abort(ring);
			return stop;
		}
	}
	relay_ring_abort(ring);
	return n ? n : result;
}

/* --- copied --- */

/* Bytes around a record's own, at most. */
struct frame {
	size_t before, behind;
};

/* The next record's bytes go to `to` + before. */
static ssize_t copy_next(struct relay_ring *ring, struct relay_ring_counts *counts, unsigned char *to, size_t size,
                         struct frame frame)
{
	for (int laps = 0; laps < LAPPED_TRIES; laps++) {
		uint32_t length = 0;
		int result = find_next(ring, counts, &length);
		if (result != 1)
			return result ? result : -EAGAIN;
		if (length + frame.before + frame.behind > size)
			return -EMSGSIZE;
		memcpy(to + frame.before, relay_ring_at(ring, counts->position) + RELAY_RING_HEADER_BYTES, length);
		if (is_lapped(ring, counts->position))
			continue;
		pass(counts, length);
		return length;
	}
	return -EAGAIN;
}

/* To copy, one needs the state, and the lock for a moment. 0 or an error of relay_ring_read(). */
static int copy_begin(struct relay_ring *ring, struct relay_ring_counts *counts)
{
	if (ring->n_held)
		return -EALREADY;
	int err = lock(ring);
	if (err || read_counts(ring, counts))
		return err;
	unlock(ring);
	return -EBADMSG;
}

static void copy_end(struct relay_ring *ring, const struct relay_ring_counts *counts)
{
	publish(ring, counts);
	unlock(ring);
}

ssize_t relay_ring_read(struct relay_ring *ring, void *to, size_t size, uint64_t *missed)
{
	struct relay_ring_counts counts;
	int err = copy_begin(ring, &counts);
	if (err)
		return err;
	uint64_t before = counts.missed;
	ssize_t result = copy_next(ring, &counts, to, size, (struct frame){0});
	if (missed)
		*missed = counts.missed - before;
	copy_end(ring, &counts);
	return result;
}

static ssize_t copy_framed(struct relay_ring *ring, struct relay_ring_counts *counts, unsigned char *to, size_t size)
{
	struct frame frame = {.before = ring->framing == RELAY_FRAMING_LENGTH ? sizeof(uint32_t) : 0,
	                      .behind = ring->framing == RELAY_FRAMING_LINE};
	ssize_t length = copy_next(ring, counts, to, size, frame);
	if (length < 0)
		return length;
	uint32_t word = (uint32_t)length;
	memcpy(to, &word, frame.before);
	if (!frame.behind || (length && to[length - 1] == '\n'))
		return length + (ssize_t)frame.before;
	to[length] = '\n';
	return length + 1;
}

ssize_t relay_ring_read_framed(struct relay_ring *ring, void *to, size_t size, unsigned max)
{
	struct relay_ring_counts counts;
	int err = copy_begin(ring, &counts);
	if (err)
		return err;
	size_t done = 0;
	ssize_t got = 0;
	for (unsigned n = 0; (!max || n < max) && got >= 0; n++) {
		got = copy_framed(ring, &counts, (unsigned char *)to + done, size - done);
		done += got > 0 ? (size_t)got : 0;
	}
	copy_end(ring, &counts);
	return done ? (ssize_t)done : got;
}

uint64_t relay_ring_damaged_at(const struct relay_ring *ring)
{
	return ring->damaged_at;
}

/* --- for those who wait or count --- */

int relay_ring_state(struct relay_ring *ring)
{
	struct relay_ring_counts counts;
	uint32_t length;
	bool closed = __atomic_load_n(&ring->producer->flags, __ATOMIC_ACQUIRE) & RELAY_CLOSED;
	if (!read_counts(ring, &counts) ||
	    __atomic_load_n(&ring->state->geometry.magic, __ATOMIC_RELAXED) != RELAY_RING_MAGIC)
		return RELAY_IS_DAMAGED;
	int found = find_next(ring, &counts, &length);
	if (found == -EBADMSG)
		return RELAY_IS_DAMAGED;
	return (found == 1 ? RELAY_HAS_DATA : 0) | (closed ? RELAY_IS_CLOSED : 0);
}

int relay_ring_counts(const struct relay_ring *ring, struct relay_ring_counts *counts)
{
	return read_counts(ring, counts) && catch_up(ring, counts) ? 0 : -EBADMSG;
}
