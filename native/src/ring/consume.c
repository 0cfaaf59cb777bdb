/* SPDX-License-Identifier: MIT */
/*
 * Reading and consuming a ring: the readers' functions of <relayfs/ring.h> and <relayfs/ring_store.h>.
 *
 *     consumer position        seen                      producer position
 *          v                    v                         v
 *     |hAAAAAA|hBB|dCCCC|hDDDDDD|hEEEE|BFFFFFF|hGG.........|         h header  d DISCARD  B BUSY
 *     '------- next() x 3 ------'      '-- next() returns 0 until F has ended
 *
 * relay_ring_next() moves a copy of the consumer's state (ring/consumer.c), relay_ring.seen, along the records.
 * relay_ring_release() stores the copy as the state.
 *
 * In overwrite mode producers may overwrite a record while it is read. So the reader copies it; the copy is valid if
 * `oldest` has not passed the record afterwards.
 */
#define _GNU_SOURCE
#include "base/taken.h"
#include "ring/consumer.h"
#include "ring/remote.h"
#include "ring/state.h"
#include "store/framing.h"

#include <errno.h>
#include <string.h>

/* True if there are records from pos to the producer position that was loaded last. Also false if the positions are
 * equal, because 0 - 1 is more than any size. */
static inline bool has_seen_more(const struct relay_ring *ring, uint64_t pos)
{
	return ring->produced - pos - 1 < ring->size - 1;
}

/* The fast path of relay_ring_find_next(), with the same checks: true if there is a committed record at pos, in a
 * ring without overwriting. If false, call relay_ring_find_next(). The caller has the consumer's lock. */
static inline bool is_record_at(struct relay_ring *ring, uint64_t pos, uint32_t *length)
{
	if (ring->mode == RELAY_OVERWRITE)
		return false;
	/* Loaded only at the end of the records that were there, because its line comes from the producer's CPU. */
	if (!has_seen_more(ring, pos)) {
		relay_before_look(&ring->look, pos);
		ring->produced = relay_ring_produced(ring);
	}
	uint64_t produced = ring->produced;
	if ((pos | produced) % 8 || !has_seen_more(ring, pos))
		return false;
	/* Pairs with the release in end_record() in ring/output.c: the record's bytes
	 * before the header without BUSY. */
	*length = __atomic_load_n(relay_ring_length_at(ring, pos), __ATOMIC_ACQUIRE);
	return !(*length & (RELAY_RING_BUSY | RELAY_RING_DISCARD)) && relay_ring_total(*length) <= produced - pos;
}

/*
 * relay_ring_find_next() for a program, which may search the whole ring in one call, because, unlike in the file
 * server, no other request waits meanwhile. If it finds no record, it checks the magic number as relay_ring_state()
 * does; otherwise a program that alternates between waiting and reading would never end.
 */
static __attribute__((noinline)) int find_next_anyhow(struct relay_ring *ring, struct relay_ring_counts *counts,
                                                      uint32_t *length)
{
	uint64_t before = counts->position;
	for (;;) {
		uint32_t work = RELAY_RING_WORK;
		int result = relay_ring_find_next(ring, counts, length, &work);
		if (result == 0)
			return relay_ring_check_magic(ring);
		if (result != -EINPROGRESS)
			return result;
		if (counts->position - before > ring->size)
			return 0;
	}
}

static inline int find_next(struct relay_ring *ring, struct relay_ring_counts *counts, uint32_t *length)
{
	if (__builtin_expect(is_record_at(ring, counts->position, length), 1))
		return 1;
	return find_next_anyhow(ring, counts, length);
}

/* Load the time of the record at pos, which is in its first `time_bytes` bytes. */
static inline void load_time(struct relay_ring *ring, uint64_t pos, uint32_t time_bytes)
{
	if (ring->time_bytes) {
		ring->time = 0;
		memcpy(&ring->time, relay_ring_at(ring, pos) + RELAY_RING_HEADER_BYTES, time_bytes);
	}
}

static void pass(struct relay_ring_counts *counts, uint32_t length)
{
	counts->position += relay_ring_total(length);
	counts->records++;
	counts->bytes += length;
}

/* --- reading records in place --- */

/* True if this thread has the consumer's lock, and so may use the fields of `ring` that belong to it. */
static bool is_ours(const struct relay_ring *ring, uint64_t self)
{
	/* Relaxed: only this thread stores its own word, and any other value has the same meaning. */
	return __atomic_load_n(&ring->consumed_by, __ATOMIC_RELAXED) == self;
}

static int begin_consuming(struct relay_ring *ring)
{
	if (ring->mode == RELAY_OVERWRITE)
		return -EOPNOTSUPP;
	uint64_t self = relay_owner_self();
	if (is_ours(ring, self))
		return 0;
	/* Returns -EBUSY also while another thread consumes with this handle. */
	int err = relay_ring_consumer_lock(ring, self);
	if (err)
		return err;
	err = relay_ring_consumer_read(ring, &ring->seen, false);
	if (err) {
		relay_ring_consumer_unlock(ring, self);
		return err;
	}
	ring->n_held = 0;
	/* Relaxed: as in is_ours(). */
	__atomic_store_n(&ring->consumed_by, self, __ATOMIC_RELAXED);
	return 0;
}

static void end_consuming(struct relay_ring *ring, uint64_t self)
{
	ring->n_held = 0;
	/* Relaxed: as in is_ours(). */
	__atomic_store_n(&ring->consumed_by, 0, __ATOMIC_RELAXED);
	relay_ring_consumer_unlock(ring, self);
}

/* If the ring is remote, end consuming by `end`. Returns true if there is nothing else to do. */
static bool end_consuming_remotely(struct relay_ring *ring, void (*end)(struct relay_ring_remote *))
{
	if (!ring)
		return true;
	if (!ring->remote)
		return false;
	end(ring->remote);
	ring->n_held = 0;
	return true;
}

void relay_ring_abort(struct relay_ring *ring)
{
	if (end_consuming_remotely(ring, relay_ring_remote_abort))
		return;
	uint64_t self = relay_owner_self();
	if (is_ours(ring, self))
		end_consuming(ring, self);
}

void relay_ring_release(struct relay_ring *ring)
{
	if (end_consuming_remotely(ring, relay_ring_remote_release))
		return;
	uint64_t self = relay_owner_self();
	if (!is_ours(ring, self))
		return;
	relay_ring_consumer_publish(ring, &ring->seen);
	end_consuming(ring, self);
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
	int result = begin_consuming(ring);
	if (result)
		return result;
	uint64_t before = ring->seen.position;
	result = find_next(ring, &ring->seen, &bytes);
	if (result == 1) {
		uint32_t time_bytes = relay_ring_time_of(ring, bytes);
		*data = relay_ring_at(ring, ring->seen.position) + RELAY_RING_HEADER_BYTES + time_bytes;
		*length = bytes - time_bytes;
		load_time(ring, ring->seen.position, time_bytes);
		pass(&ring->seen, bytes);
		ring->n_held++;
	} else if (!ring->n_held) {
		/* No record is returned: consume the skipped ones, which makes room. */
		if (ring->seen.position != before || ring->seen.position != relay_ring_consumed(ring))
			relay_ring_consumer_publish(ring, &ring->seen);
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
		/* Consume each record at once, to make room for producers, and keep the lock. */
		if (ring->remote)
			relay_ring_remote_release(ring->remote);
		else
			relay_ring_consumer_publish(ring, &ring->seen);
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

/* --- copying records --- */

/* Copy the next record, without its time, to `to` + frame.before. work: as for relay_ring_find_next(); NULL: unlimited, for a
 * program. Returns its length; -EAGAIN: there is none; -EMSGSIZE: it is longer than `size` allows; or an error
 * of relay_ring_find_next(). */
static ssize_t copy_next(struct relay_ring *ring, struct relay_ring_counts *counts, unsigned char *to, size_t size,
                         struct relay_frame frame, uint32_t *work)
{
	for (int laps = 0; laps < RELAY_RING_LAPPED_TRIES; laps++) {
		uint32_t length = 0;
		int result =
		    work ? relay_ring_find_next(ring, counts, &length, work) : find_next(ring, counts, &length);
		if (result != 1)
			return result ? result : -EAGAIN;
		uint32_t time_bytes = relay_ring_time_of(ring, length), bytes = length - time_bytes;
		if (bytes + frame.before + frame.behind > size)
			return -EMSGSIZE;
		memcpy(to + frame.before, relay_ring_at(ring, counts->position) + RELAY_RING_HEADER_BYTES + time_bytes,
		       bytes);
		load_time(ring, counts->position, time_bytes);
		if (relay_ring_is_lapped(ring, counts->position))
			continue;
		pass(counts, length);
		return bytes;
	}
	return -EAGAIN;
}

/* Take the consumer's lock and read its state, to copy records. Returns 0 or an error of relay_ring_read(). */
static int copy_begin(struct relay_ring *ring, struct relay_ring_counts *counts)
{
	uint64_t self = relay_owner_self();
	if (is_ours(ring, self) && ring->n_held)
		return -EALREADY;
	int err = relay_ring_consumer_lock(ring, self);
	if (err)
		return err;
	err = relay_ring_consumer_read(ring, counts, false);
	if (err)
		relay_ring_consumer_unlock(ring, self);
	return err;
}

static void copy_end(struct relay_ring *ring, const struct relay_ring_counts *counts)
{
	relay_ring_consumer_publish(ring, counts);
	relay_ring_consumer_unlock(ring, relay_owner_self());
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
	/* Rings without overwrite mode do not overwrite records. */
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
	ssize_t result = copy_next(ring, &counts, to, size, (struct relay_frame){0}, NULL);
	if (missed)
		*missed = counts.missed - before;
	copy_end(ring, &counts);
	return result;
}

uint64_t relay_ring_time(const struct relay_ring *ring)
{
	return ring ? ring->time : 0;
}

static ssize_t copy_framed(struct relay_ring *ring, struct relay_ring_counts *counts, unsigned char *to, size_t size,
                           uint32_t *work)
{
	const struct relay_frame frame = relay_frames[ring->geometry.framing];
	ssize_t length = copy_next(ring, counts, to, size, frame, work);
	return length < 0 ? length : (ssize_t)relay_frame_put(frame, to, (size_t)length);
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
	if (done)
		relay_taken_note(counts.position, done);
	copy_end(ring, &counts);
	if (done)
		return (ssize_t)done;
	return got == -EINPROGRESS ? -EBUSY : got;
}

/* Copy the next record in the form to `to`. Returns the number of bytes, or an error of relay_ring_next_framed(). */
static ssize_t take_in_form(struct relay_ring *ring, const struct relay_ring_form *form, unsigned char *to, size_t size)
{
	const struct relay_frame frame =
	    form ? (struct relay_frame){sizeof(uint32_t), 0} : relay_frames[ring->geometry.framing];
	const size_t time_bytes = form && form->freq ? sizeof(uint64_t) : 0;
	const size_t around = time_bytes + frame.before + frame.behind, room = size > around ? size - around : 0;
	const void *data;
	size_t length;
	if (ring->mode == RELAY_OVERWRITE) {
		/* If there is no room for the frame, there is none for any record either. */
		ssize_t got =
		    size < around ? -EMSGSIZE : relay_ring_read(ring, to + time_bytes + frame.before, room, NULL);
		if (got < 0)
			return got;
		length = (size_t)got;
	} else {
		struct relay_ring_counts before = ring->seen; /* not used for the first record */
		int result = relay_ring_next(ring, &data, &length);
		if (result != 1)
			return result ? result : -EAGAIN;
		if (size < around || length > room) {
			ring->seen = before;
			if (!--ring->n_held)
				relay_ring_abort(ring);
			return -EMSGSIZE;
		}
		memcpy(to + time_bytes + frame.before, data, length);
	}
	if (time_bytes) {
		uint64_t ns =
		    ring->time ? (uint64_t)((unsigned __int128)(form->offset + ring->time) * 1000000000u / form->freq) +
				     form->offset_s * 1000000000u
			       : 0;
		memcpy(to, &ns, sizeof(ns));
	}
	return (ssize_t)(time_bytes + relay_frame_put(frame, to + time_bytes, length));
}

ssize_t relay_ring_next_framed(struct relay_ring *ring, const struct relay_ring_form *form, void *to, size_t size)
{
	size_t done = 0;
	ssize_t got = 0;
	if (ring->remote)
		return -EOPNOTSUPP;
	if (is_ours(ring, relay_owner_self()) && ring->n_held)
		return -EALREADY;
	for (unsigned n = 0; (got = take_in_form(ring, form, (unsigned char *)to + done, size - done)) >= 0; n++) {
		done += (size_t)got;
		/* So that a program which writes empty records holds up nobody. */
		if (n == RELAY_RING_WORK)
			break;
	}
	return done || got >= 0 || ring->n_held ? (ssize_t)done : got;
}

/* --- copying a record in parts --- */

/* Find the next record: 1, with the lock taken and to be released by copy_end(); or an error of relay_ring_read(). */
static int find_to_copy(struct relay_ring *ring, struct relay_ring_counts *counts, uint32_t *length)
{
	uint32_t work = RELAY_RING_WORK;
	int err = ring->remote ? -EOPNOTSUPP : copy_begin(ring, counts);
	if (err)
		return err;
	int found = relay_ring_find_next(ring, counts, length, &work);
	if (found == 1)
		return 1;
	copy_end(ring, counts);
	return found == -EINPROGRESS ? -EBUSY : found ? found : -EAGAIN;
}

ssize_t relay_ring_parts_begin(struct relay_ring *ring, struct relay_ring_parts *parts)
{
	const struct relay_frame frame = relay_frames[ring->geometry.framing];
	struct relay_ring_counts counts;
	uint32_t length = 0;
	int found = find_to_copy(ring, &counts, &length);
	if (found != 1)
		return found;
	copy_end(ring, &counts);
	*parts = (struct relay_ring_parts){.position = counts.position, .length = length};
	return (ssize_t)(frame.before + length - relay_ring_time_of(ring, length) + frame.behind);
}

ssize_t relay_ring_parts_copy(const struct relay_ring *ring, struct relay_ring_parts *parts, void *to, size_t most)
{
	const size_t before = relay_frames[ring->geometry.framing].before;
	const uint32_t time_bytes = relay_ring_time_of(ring, parts->length);
	const size_t left = parts->length - time_bytes - parts->copied, n = left < most ? left : most;
	memcpy((unsigned char *)to + before + parts->copied,
	       relay_ring_at(ring, parts->position) + RELAY_RING_HEADER_BYTES + time_bytes + parts->copied, n);
	/* As is_intact() in ring/follow.c without `times`, since what was consumed is another reader's. Pairs with the
	 * release in relay_ring_consumer_publish(). */
	if (relay_ring_is_lapped(ring, parts->position) ||
	    (ring->mode != RELAY_OVERWRITE && relay_ring_is_behind(parts->position, relay_ring_consumed(ring))))
		return -ESTALE;
	parts->copied += n;
	return (ssize_t)n;
}

ssize_t relay_ring_parts_consume(struct relay_ring *ring, const struct relay_ring_parts *parts, void *to)
{
	const struct relay_frame frame = relay_frames[ring->geometry.framing];
	struct relay_ring_counts counts;
	uint32_t length = 0;
	int found = find_to_copy(ring, &counts, &length);
	if (found != 1)
		return found == -EAGAIN || found == -EPIPE ? -ESTALE : found;
	/* Found again at its position, it was neither consumed nor overwritten before, so the copy is intact. */
	bool is_same = counts.position == parts->position && length == parts->length;
	size_t framed = 0;
	if (is_same) {
		pass(&counts, length);
		framed = relay_frame_put(frame, to, length - relay_ring_time_of(ring, length));
		relay_taken_note(counts.position, framed);
	}
	copy_end(ring, &counts);
	return is_same ? (ssize_t)framed : -ESTALE;
}

int relay_ring_skip(struct relay_ring *ring)
{
	if (ring->remote)
		return -EOPNOTSUPP;
	/* In overwrite mode producers need no room, and the next reader must get the number of missed records. */
	if (ring->mode == RELAY_OVERWRITE)
		return 0;
	struct relay_ring_counts counts;
	int err = copy_begin(ring, &counts);
	if (err)
		return err;
	uint32_t length, work = RELAY_RING_WORK;
	int found = relay_ring_find_next(ring, &counts, &length, &work);
	copy_end(ring, &counts);
	if (found == -EINPROGRESS)
		return -EBUSY;
	return found == -EBADMSG ? found : 0;
}
