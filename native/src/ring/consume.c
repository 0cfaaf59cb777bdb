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
#include "ring/consume.h"

#include "base/owner.h"
#include "ring/claims.h"
#include "ring/remote.h"

#include <errno.h>
#include <string.h>

enum {
	READ_TRIES = 100, /* each failed one means that somebody consumed meanwhile */
	BURY_TRIES = 16,
	LAPPED_TRIES = 1000,
	LOCK_TRIES = 16, /* each means that a dead owner was replaced by another one */
	BURY_UNITS = 512 /* of RELAY_RING_WORK: what it costs to ask whether somebody lives */
};

/* What there is at a position. */
enum look {
	LOOK_NOTHING, /* or BUSY */
	LOOK_RECORD,
	LOOK_DISCARDED,
	LOOK_LAPPED, /* it was overwritten meanwhile */
	LOOK_DAMAGED
};

/* --- the consumer's state --- */

static int lock(struct relay_ring *ring, uint64_t self)
{
	uint64_t *word = &ring->consumer->lock, holder = 0;
	for (int i = 0; i < LOCK_TRIES; i++) {
		/* Acquire pairs with the release in unlock(): the state that the last holder left. */
		if (__atomic_compare_exchange_n(word, &holder, self, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
			return 0;
		if (holder && relay_owner_alive(holder))
			return -EBUSY;
		/* Dead: the next round takes the lock from exactly that holder. */
	}
	return -EBUSY;
}

static void unlock(struct relay_ring *ring, uint64_t self)
{
	__atomic_compare_exchange_n(&ring->consumer->lock, &self, 0, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
}

static bool is_behind(uint64_t pos, uint64_t other)
{
	return (int64_t)(other - pos) > 0;
}

struct relay_ring_moment relay_ring_moment(const struct relay_ring *ring)
{
	/* Relaxed: what is read of the consumer's state is loaded again. */
	return (struct relay_ring_moment){__atomic_load_n(&ring->consumer->current, __ATOMIC_RELAXED),
	                                  __atomic_load_n(&ring->consumer->position, __ATOMIC_RELAXED)};
}

bool relay_ring_has_moved(const struct relay_ring *ring, struct relay_ring_moment since)
{
	/* Pairs with the release in publish(): who saw producers go on sees the consumer who let them. */
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	struct relay_ring_moment now = relay_ring_moment(ring);
	return now.current != since.current || now.position != since.position;
}

static int damaged_at(struct relay_ring *ring, uint64_t pos)
{
	ring->damaged_at = pos;
	return -EBADMSG;
}

/* A state contradicts itself: note where. */
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

/* All that can be said of a state by itself: each record takes a header of 8 bytes, positions stay below 2^63. What is
 * checked is a private copy. One branch for an honest state; note_counts() says which rule another one breaks. */
static inline int check_counts(struct relay_ring *ring, const struct relay_ring_counts *counts)
{
	uint64_t all = counts->position | counts->records | counts->discarded | counts->bytes | counts->missed;
	/* No sum of two numbers below 2^63 overflows. */
	bool fits = !(all >> 63) & (counts->records + counts->discarded <= counts->position / RELAY_RING_HEADER_BYTES) &
	            (counts->bytes <= counts->position) & (counts->missed <= counts->records);
	return __builtin_expect(fits, 1) ? 0 : note_counts(ring, counts);
}

/* A consumer that counts no records has come to `position`. */
static void follow(struct relay_ring_counts *counts, uint64_t position)
{
	counts->foreign += position - counts->position;
	counts->position = position;
}

/* The state. 0 or -EBADMSG. In mode overwrite only who looks follows others, because readers would not know how many records
 * they missed. */
static int read_counts(struct relay_ring *ring, struct relay_ring_counts *counts, bool only_looks)
{
	const struct relay_ring_consumer *consumer = ring->consumer;
	for (int i = 0; i < READ_TRIES; i++) {
		uint32_t current = __atomic_load_n(&consumer->current, __ATOMIC_ACQUIRE);
		*counts = consumer->counts[current & 1];
		/* Pairs with the release in publish(), which flips before: a position that is ahead of its state is not ours. */
		uint64_t position = relay_ring_consumed(ring);
		/* A copy is rewritten only after `current` has moved on from it. */
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		if (__atomic_load_n(&consumer->current, __ATOMIC_RELAXED) != current)
			continue;
		if (check_counts(ring, counts))
			return -EBADMSG;
		/* Somebody else consumes by the kernel's format. */
		bool follows =
		    ring->mode != RELAY_OVERWRITE || (only_looks && !is_behind(relay_ring_produced(ring), position));
		if (is_behind(counts->position, position) && follows)
			follow(counts, position);
		return relay_damage_above(&ring->damage, "the consumer position", 0, counts->position, INT64_MAX);
	}
	return relay_damage_say(&ring->damage, "relay_ring_consumer.current does not come to rest");
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

/* Overwrite mode: where the oldest record lies that stands, and the committed records before it, at one moment. */
static bool read_oldest(const struct relay_ring *ring, uint64_t *oldest, uint64_t *records)
{
	if (ring->scheme == RELAY_RSEQ)
		return relay_latch_read(&ring->state->oldest, oldest, records);
	const struct relay_u128 *overwritten = &ring->producer->overwritten;
	for (int i = 0; i < RELAY_LATCH_TRIES; i++) {
		/* Pairs with the compare-and-swap in change_oldest(), which changes both, and the first one each time. */
		uint64_t first = __atomic_load_n(&overwritten->first, __ATOMIC_ACQUIRE);
		*records = __atomic_load_n(&overwritten->second, __ATOMIC_ACQUIRE);
		*oldest = first & ~RELAY_LATCH_INDEX;
		if (__atomic_load_n(&overwritten->first, __ATOMIC_RELAXED) == first)
			return true;
	}
	return false;
}

/* Overwrite mode: records were overwritten before the reader came. 0 or -EBADMSG. */
static int catch_up(struct relay_ring *ring, struct relay_ring_counts *counts)
{
	uint64_t oldest, records;
	if (ring->mode != RELAY_OVERWRITE)
		return 0;
	if (!read_oldest(ring, &oldest, &records))
		return relay_damage_say(&ring->damage, "the position of the oldest record does not come to rest");
	if (!is_behind(counts->position, oldest))
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

bool relay_ring_is_lapped(const struct relay_ring *ring, uint64_t pos)
{
	/* What was loaded before is right if this is not so. */
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return ring->mode == RELAY_OVERWRITE && is_behind(pos, relay_ring_floor(ring));
}

/* Nothing is published at pos: perhaps because who has reserved there died. true: look again. */
static bool is_held_up(struct relay_ring *ring, uint64_t pos)
{
	return relay_ring_reserved(ring) != pos && relay_ring_claims_reap_at(ring, pos) == 1;
}

/* BUSY. true: not any more, look again. */
static enum look look_at_busy(struct relay_ring *ring, uint64_t pos, bool *again)
{
	int reaped = relay_ring_claims_reap_at(ring, pos);
	bool busy = __atomic_load_n(relay_ring_length_at(ring, pos), __ATOMIC_ACQUIRE) & RELAY_RING_BUSY;
	if (relay_ring_is_lapped(ring, pos))
		return LOOK_LAPPED;
	*again = reaped == 1 || !busy;
	if (reaped != -ENOENT || !busy)
		return LOOK_NOTHING;
	relay_damage_note(&ring->damage, "the header at position []", pos, *relay_ring_length_at(ring, pos),
	                  "busy, and nobody has reserved it; the limit is", RELAY_RING_BUSY - 1);
	return LOOK_DAMAGED;
}

/* The positions contradict each other. */
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
		*again = is_held_up(ring, pos);
		return LOOK_NOTHING;
	}
	/* Pairs with the release that ends a reservation: the payload before it. */
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
			*work = *work > BURY_UNITS ? *work - BURY_UNITS : 0;
	} while (again && ++tries < BURY_TRIES);
	return found;
}

/*
 * Pass what is to be skipped, up to a record: 1 and how long it is, 0 or -EPIPE: there is none, -EBADMSG; -EINPROGRESS:
 * `*work` records have been passed, and there are more.
 */
static int find_next(struct relay_ring *ring, struct relay_ring_counts *counts, uint32_t *length, uint32_t *work)
{
	int laps = 0;
	for (; *work && laps < LAPPED_TRIES; --*work) {
		/* Before the look: what was there when the ring was closed is still given. */
		bool closed = __atomic_load_n(&ring->producer->flags, __ATOMIC_ACQUIRE) & RELAY_CLOSED;
		if (catch_up(ring, counts))
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
	return laps == LAPPED_TRIES ? 0 : -EINPROGRESS;
}

/* The usual case of look() in few instructions, with the same checks: a committed record, which nobody overwrites. false:
 * look() says what there is. */
static inline bool is_record_at(const struct relay_ring *ring, uint64_t pos, uint32_t *length)
{
	uint64_t produced = relay_ring_produced(ring);
	/* Also false where both are the same: 0 - 1 is more than any size. */
	if (ring->mode == RELAY_OVERWRITE || (pos | produced) % 8 || produced - pos - 1 >= ring->size - 1)
		return false;
	/* Pairs with the release that ends a reservation: the payload before it. */
	*length = __atomic_load_n(relay_ring_length_at(ring, pos), __ATOMIC_ACQUIRE);
	return !(*length & (RELAY_RING_BUSY | RELAY_RING_DISCARD)) && relay_ring_total(*length) <= produced - pos;
}

/*
 * find_next() for a program, which has nobody to keep waiting but itself: up to all that a ring can hold. Where nothing is
 * found relay_ring_state() may say that the ring is damaged: then this does, too, because a program that waits for one and
 * asks the other would go round and round.
 */
static __attribute__((noinline)) int find_next_anyhow(struct relay_ring *ring, struct relay_ring_counts *counts,
                                                      uint32_t *length)
{
	uint64_t before = counts->position;
	for (;;) {
		uint32_t work = RELAY_RING_WORK;
		int result = find_next(ring, counts, length, &work);
		if (result == 0)
			return relay_ring_check_magic(ring);
		if (result != -EINPROGRESS)
			return result;
		if (counts->position - before > ring->size)
			return 0;
	}
}

static inline int find_next_of_all(struct relay_ring *ring, struct relay_ring_counts *counts, uint32_t *length)
{
	if (__builtin_expect(is_record_at(ring, counts->position, length), 1))
		return 1;
	return find_next_anyhow(ring, counts, length);
}

static void pass(struct relay_ring_counts *counts, uint32_t length)
{
	counts->position += relay_ring_total(length);
	counts->records++;
	counts->bytes += length;
}

/* --- in place --- */

/* Does this thread hold the consumer's lock, and so what the handle keeps of a consumer? */
static bool is_ours(const struct relay_ring *ring, uint64_t self)
{
	/* Relaxed: only this thread stores its own word, and another one's is no different from none. */
	return __atomic_load_n(&ring->consumed_by, __ATOMIC_RELAXED) == self;
}

static int begin(struct relay_ring *ring)
{
	if (ring->mode == RELAY_OVERWRITE)
		return -EOPNOTSUPP;
	uint64_t self = relay_owner_self();
	if (is_ours(ring, self))
		return 0;
	/* -EBUSY also while another thread consumes by this handle. */
	int err = lock(ring, self);
	if (err)
		return err;
	err = read_counts(ring, &ring->seen, false);
	if (err) {
		unlock(ring, self);
		return err;
	}
	ring->n_held = 0;
	__atomic_store_n(&ring->consumed_by, self, __ATOMIC_RELAXED);
	return 0;
}

static void end(struct relay_ring *ring, uint64_t self)
{
	ring->n_held = 0;
	__atomic_store_n(&ring->consumed_by, 0, __ATOMIC_RELAXED);
	unlock(ring, self);
}

void relay_ring_abort(struct relay_ring *ring)
{
	if (!ring)
		return;
	if (ring->remote) {
		relay_ring_remote_abort(ring->remote);
		ring->n_held = 0;
		return;
	}
	uint64_t self = relay_owner_self();
	if (is_ours(ring, self))
		end(ring, self);
}

void relay_ring_release(struct relay_ring *ring)
{
	if (!ring)
		return;
	if (ring->remote) {
		relay_ring_remote_release(ring->remote);
		ring->n_held = 0;
		return;
	}
	uint64_t self = relay_owner_self();
	if (!is_ours(ring, self))
		return;
	publish(ring, &ring->seen);
	end(ring, self);
}

static int next_remote(struct relay_ring *ring, const void **data, size_t *length)
{
	int result = relay_ring_remote_next(ring->remote, data, length);
	ring->n_held += result == 1;
	return result;
}

int relay_ring_next(struct relay_ring *ring, const void **data, size_t *length)
{
	if (!ring)
		return -EBADF;
	if (ring->remote)
		return next_remote(ring, data, length);
	uint32_t bytes = 0;
	int result = begin(ring);
	if (result)
		return result;
	uint64_t before = ring->seen.position;
	result = find_next_of_all(ring, &ring->seen, &bytes);
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
	if (!ring)
		return -EBADF;
	if ((ring->remote || is_ours(ring, relay_owner_self())) && ring->n_held)
		return -EALREADY;
	while ((!max || (unsigned)n < max) && (result = relay_ring_next(ring, &data, &length)) == 1) {
		int stop = each(context, data, length);
		/* Producers get the room of each record at once; the lock is kept. */
		if (ring->remote)
			relay_ring_remote_release(ring->remote);
		else
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

/* The next record's bytes go to `to` + before. work: as for find_next(); NULL: for a program. */
static ssize_t copy_next(struct relay_ring *ring, struct relay_ring_counts *counts, unsigned char *to, size_t size,
                         struct frame frame, uint32_t *work)
{
	for (int laps = 0; laps < LAPPED_TRIES; laps++) {
		uint32_t length = 0;
		int result = work ? find_next(ring, counts, &length, work) : find_next_of_all(ring, counts, &length);
		if (result != 1)
			return result ? result : -EAGAIN;
		if (length + frame.before + frame.behind > size)
			return -EMSGSIZE;
		memcpy(to + frame.before, relay_ring_at(ring, counts->position) + RELAY_RING_HEADER_BYTES, length);
		if (relay_ring_is_lapped(ring, counts->position))
			continue;
		pass(counts, length);
		return length;
	}
	return -EAGAIN;
}

/* To copy, one needs the state, and the lock for a moment. 0 or an error of relay_ring_read(). */
static int copy_begin(struct relay_ring *ring, struct relay_ring_counts *counts)
{
	uint64_t self = relay_owner_self();
	if (is_ours(ring, self) && ring->n_held)
		return -EALREADY;
	int err = lock(ring, self);
	if (err)
		return err;
	err = read_counts(ring, counts, false);
	if (err)
		unlock(ring, self);
	return err;
}

static void copy_end(struct relay_ring *ring, const struct relay_ring_counts *counts)
{
	publish(ring, counts);
	unlock(ring, relay_owner_self());
}

static ssize_t read_remote(struct relay_ring *ring, void *to, size_t size, uint64_t *missed)
{
	const void *data;
	size_t length;
	if (ring->n_held)
		return -EALREADY;
	int result = next_remote(ring, &data, &length);
	if (result != 1)
		return result ? result : -EAGAIN;
	if (length > size) {
		relay_ring_abort(ring);
		return -EMSGSIZE;
	}
	memcpy(to, data, length);
	relay_ring_release(ring);
	/* Rings that are read like this overwrite nothing. */
	if (missed)
		*missed = 0;
	return (ssize_t)length;
}

ssize_t relay_ring_read(struct relay_ring *ring, void *to, size_t size, uint64_t *missed)
{
	if (!ring)
		return -EBADF;
	if (ring->remote)
		return read_remote(ring, to, size, missed);
	struct relay_ring_counts counts;
	int err = copy_begin(ring, &counts);
	if (err)
		return err;
	uint64_t before = counts.missed;
	ssize_t result = copy_next(ring, &counts, to, size, (struct frame){0}, NULL);
	if (missed)
		*missed = counts.missed - before;
	copy_end(ring, &counts);
	return result;
}

static ssize_t copy_framed(struct relay_ring *ring, struct relay_ring_counts *counts, unsigned char *to, size_t size,
                           uint32_t *work)
{
	struct frame frame = {.before = ring->geometry.framing == RELAY_FRAMING_LENGTH ? sizeof(uint32_t) : 0,
	                      .behind = ring->geometry.framing == RELAY_FRAMING_LINE};
	ssize_t length = copy_next(ring, counts, to, size, frame, work);
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
	if (ring->remote)
		return -EOPNOTSUPP;
	struct relay_ring_counts counts;
	int err = copy_begin(ring, &counts);
	if (err)
		return err;
	size_t done = 0;
	ssize_t got = 0;
	uint32_t work = RELAY_RING_WORK;
	for (unsigned n = 0; (!max || n < max) && got >= 0; n++) {
		got = copy_framed(ring, &counts, (unsigned char *)to + done, size - done, &work);
		done += got > 0 ? (size_t)got : 0;
		work -= work > 0;
	}
	copy_end(ring, &counts);
	if (done)
		return (ssize_t)done;
	return got == -EINPROGRESS ? -EBUSY : got;
}

int relay_ring_skip(struct relay_ring *ring)
{
	if (ring->remote)
		return -EOPNOTSUPP;
	/* There producers need nobody to make room, and the next reader shall be told what it missed. */
	if (ring->mode == RELAY_OVERWRITE)
		return 0;
	struct relay_ring_counts counts;
	int err = copy_begin(ring, &counts);
	if (err)
		return err;
	uint32_t length, work = RELAY_RING_WORK;
	int found = find_next(ring, &counts, &length, &work);
	copy_end(ring, &counts);
	if (found == -EINPROGRESS)
		return -EBUSY;
	return found == -EBADMSG ? found : 0;
}

uint64_t relay_ring_damaged_at(const struct relay_ring *ring)
{
	return ring ? ring->damaged_at : 0;
}

const char *relay_ring_damage(struct relay_ring *ring)
{
	return ring ? relay_damage_text(&ring->damage) : "";
}

/* --- for those who wait or count --- */

int relay_ring_check_magic(struct relay_ring *ring)
{
	uint64_t magic = __atomic_load_n(&ring->state->geometry.magic, __ATOMIC_RELAXED);
	if (magic == RELAY_RING_MAGIC)
		return 0;
	return relay_damage_note(&ring->damage, "relay_ring_geometry.magic", 0, magic, "not", RELAY_RING_MAGIC);
}

/* Look on from where the last look came to, unless a consumer has passed that: relay_ring_state() once. skips: there is
 * something before the next record, or before where the look came to. */
static int look_on(struct relay_ring *ring, uint32_t *work, bool *skips)
{
	struct relay_ring_counts counts, *empty = &ring->empty;
	uint32_t length;
	if (relay_ring_check_magic(ring) || read_counts(ring, &counts, true))
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
	int found = find_next(ring, &counts, &length, work);
	if (found != -EBADMSG)
		*empty = counts;
	*skips = empty->position != consumed;
	return found;
}

/* Does another thread hold what a read needs? */
static bool is_held(const struct relay_ring *ring)
{
	uint64_t holder = __atomic_load_n(&ring->consumer->lock, __ATOMIC_RELAXED);
	return holder && holder != relay_owner_self() && relay_owner_alive(holder);
}

int relay_ring_state(struct relay_ring *ring)
{
	if (ring->remote)
		return relay_ring_remote_state(ring->remote);
	bool closed = __atomic_load_n(&ring->producer->flags, __ATOMIC_ACQUIRE) & RELAY_CLOSED;
	uint32_t work = RELAY_RING_WORK;
	struct relay_ring_moment begin = relay_ring_moment(ring);
	bool skips = false;
	int found = look_on(ring, &work, &skips);
	/* A consumer that goes on lets producers store where this one looks. */
	for (int i = 0; found == -EBADMSG && i < RELAY_RING_MOVE_TRIES && relay_ring_has_moved(ring, begin); i++) {
		relay_damage_forget(&ring->damage);
		begin = relay_ring_moment(ring);
		found = look_on(ring, &work, &skips);
	}
	if (found == -EBADMSG)
		return RELAY_IS_DAMAGED;
	int bits = (closed ? RELAY_IS_CLOSED : 0) | (skips ? RELAY_HAS_DISCARDED : 0);
	if (found == 1)
		bits |= RELAY_HAS_DATA | (is_held(ring) ? RELAY_IS_HELD : 0);
	return bits | (found == -EINPROGRESS ? RELAY_LOOK_AGAIN : 0);
}

int relay_ring_counts(struct relay_ring *ring, struct relay_ring_counts *counts)
{
	int err = read_counts(ring, counts, true);
	if (err)
		return err;
	struct relay_ring_counts before = *counts;
	err = catch_up(ring, counts);
	/* What was overwritten may have been read. */
	if (counts->foreign) {
		counts->records = before.records;
		counts->missed = before.missed;
	}
	return err;
}
