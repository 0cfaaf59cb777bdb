/* SPDX-License-Identifier: MIT */
/*
 * Writing and reading records in buffers with `times`.
 *
 *     |head|record     |head|record|head|record         |....|     head: struct relay_timed_head; . padding
 *
 * A record of up to COPIED_BYTES is copied behind its head on the stack, and both are written as a tracepoint writes an
 * event: the clock is read when the position is known, and in scheme rseq one restartable section copies all. A longer
 * record is reserved, and copied to its place in the buffer.
 *
 * Readers get the records without the heads. If a program has overwritten a head, so that it is not valid, all bytes from
 * there to the next hole, or to the end of the sub-buffer, are returned as one record.
 */
#define _GNU_SOURCE
#include "buffer/timed.h"

#include "base/quiet.h"
#include "base/taken.h"
#include "buffer/walk.h"
#include "buffer/write.h"

/* COPIED_BYTES: longer records are reserved. READ_SPANS: the most spans of one relay_buf_read_records(). */
enum { COPIED_BYTES = 512, READ_SPANS = 64, READ_TRIES = 100 };

/* relay_record_time.rest: the last bytes of the head, and the record. */
struct rest {
	uint32_t time_high, length;
	unsigned char data[COPIED_BYTES];
};

/* --- writing --- */

/* Return the length of a record with its head. The length of a record that is too long for a sub-buffer is returned as it
 * is, because the sum could overflow. */
static size_t with_head(const struct rchan_buf *buf, size_t length)
{
	return length <= buf->largest ? length + RELAY_HEAD_BYTES : length;
}

static int write_copied(struct rchan_buf *buf, const void *data, size_t length, bool will_retry)
{
	struct rest rest;
	struct relay_record_time time = {.rest = &rest};
	rest.length = (uint32_t)length;
	memcpy(rest.data, data, length);
	length += RELAY_HEAD_BYTES;
	if (buf->scheme != RELAY_RSEQ)
		return relay_write_shared(buf, NULL, length, &time, will_retry);
	/* A blind thread may not read the clock as the fast path does. */
	if (relay_is_blind())
		return relay_write_rseq_slow(buf, NULL, length, &time, will_retry);
	return relay_write_rseq(buf, NULL, length, &time, will_retry);
}

int relay_timed_reserve(struct rchan_buf *buf, size_t length, bool will_retry, struct relay_claim **claim, void **to)
{
	struct relay_slot slot = {.stamped = true, .will_retry = will_retry};
	int err = relay_reserve_claimed(buf, with_head(buf, length), &slot);
	if (err)
		return err;
	struct relay_timed_head head = {.extended = RELAY_TRACE_EXTENDED,
	                                .time = {(uint32_t)slot.clock, (uint32_t)(slot.clock >> 32)},
	                                .length = (uint32_t)length};
	memcpy(slot.to, &head, sizeof(head));
	*claim = slot.claim;
	*to = (char *)slot.to + sizeof(head);
	return 0;
}

int relay_timed_write(struct rchan_buf *buf, const void *data, size_t length, bool will_retry)
{
	struct relay_claim *claim;
	void *to;
	if (length == 0)
		return 0;
	if (length <= COPIED_BYTES)
		return write_copied(buf, data, length, will_retry);
	int err = relay_timed_reserve(buf, length, will_retry, &claim, &to);
	if (err)
		return err;
	memcpy(to, data, length);
	relay_commit_claim(buf, claim);
	return 0;
}

/* --- reading --- */

/* A record in a span: the bytes of its head, 0 if there is no valid one, and of the record; and the time in the head. */
struct part {
	size_t head, length;
	uint64_t time;
};

/* Return the record at `at`, which is `left` bytes before the end of its span. is_cut: the record may extend beyond the
 * span. Other programs may change the memory. */
static struct part part_at(const unsigned char *at, size_t left, bool is_cut)
{
	struct relay_timed_head head = {0};
	memcpy(&head, at, left < sizeof(head) ? left : sizeof(head));
	/* Prevents a second load. */
	__asm__ volatile("" : : : "memory");
	bool is_whole = left >= sizeof(head) && head.length <= left - sizeof(head);
	if (is_cut && left < sizeof(head))
		return (struct part){sizeof(head), 0, 0};
	if ((is_whole || is_cut) && head.extended == RELAY_TRACE_EXTENDED && head.id == 0)
		return (struct part){sizeof(head), head.length, (uint64_t)head.time[1] << 32 | head.time[0]};
	return (struct part){0, left, 0};
}

/* The limits and the results of take(). */
struct taking {
	unsigned char *to; /* receives the records; NULL: they are only counted */
	size_t size, most; /* limits: bytes without heads, and records */
	size_t raw;        /* results: bytes with heads, */
	size_t done, n;    /* bytes without heads, and records */
};

/* Take whole records from the spans, up to the limits. is_cut: the last record may extend beyond the last span. */
static void take(struct taking *taking, const struct relay_span *spans, size_t n, bool is_cut)
{
	for (size_t i = 0; i < n; i++) {
		const unsigned char *at = spans[i].data, *end = at + spans[i].length;
		while (at < end) {
			size_t left = (size_t)(end - at);
			struct part part = part_at(at, left, is_cut && i + 1 == n);
			if (part.head + part.length > left || part.length > taking->size - taking->done ||
			    taking->n == taking->most)
				return;
			if (taking->to)
				memcpy(taking->to + taking->done, at + part.head, part.length);
			taking->done += part.length;
			taking->raw += part.head + part.length;
			taking->n++;
			at += part.head + part.length;
		}
	}
}

size_t relay_timed_take(const struct relay_span *spans, size_t n, bool is_cut, void *to, size_t size, size_t *raw)
{
	struct taking taking = {.to = to, .size = size, .most = SIZE_MAX};
	take(&taking, spans, n, is_cut);
	*raw = taking.raw;
	return taking.done;
}

size_t relay_timed_whole(const struct relay_span *span, uint64_t *n)
{
	const unsigned char *data = span->data;
	size_t done = 0;
	for (*n = 0; done < span->length; ++*n) {
		struct part part = part_at(data + done, span->length - done, false);
		if (!part.head)
			break;
		done += part.head + part.length;
	}
	return done;
}

bool relay_consume_shorten(struct rchan_buf *buf, size_t limit, struct relay_span *spans, int *n_spans, size_t *total)
{
	const uint64_t start = buf->plan.start;
	struct relay_walk walk = {
	    .buf = buf, .plan = &buf->plan, .spans = spans, .n_spans = (size_t)*n_spans, .max_bytes = limit};
	pthread_mutex_lock(&buf->walking);
	relay_work_begin(buf);
	int err = relay_walk_plan(&walk);
	pthread_mutex_unlock(&buf->walking);
	/* As relay_consume_begin() sets them; relay_walk_plan() has cleared them. */
	buf->plan.to.reads++;
	buf->plan.active = true;
	*n_spans = (int)walk.n_used;
	*total = walk.total;
	return !err && walk.total == limit && buf->plan.start == start;
}

int relay_consume_whole(struct rchan_buf *buf, size_t size, size_t most, struct relay_span *spans, size_t n_spans,
                        size_t *total)
{
	const size_t limit = size < SIZE_MAX - RELAY_HEAD_BYTES ? size + RELAY_HEAD_BYTES : SIZE_MAX;
	for (int tries = 0; tries < READ_TRIES; tries++) {
		int n = relay_consume_begin(buf, limit, spans, n_spans, total);
		if (n <= 0 || !buf->is_timed)
			return n;
		struct taking taking = {.size = size, .most = most ? most : SIZE_MAX};
		take(&taking, spans, (size_t)n, *total == limit);
		if (taking.raw == *total || (taking.raw && relay_consume_shorten(buf, taking.raw, spans, &n, total)))
			return n;
		relay_consume_abort(buf);
		if (!taking.raw)
			return -EMSGSIZE;
	}
	return -EBUSY;
}

ssize_t relay_buf_read_records(struct rchan_buf *buf, void *to, size_t size, size_t most)
{
	struct relay_span spans[READ_SPANS];
	size_t total;
	for (int tries = 0; tries < READ_TRIES; tries++) {
		int n = relay_consume_whole(buf, size, most, spans, READ_SPANS, &total);
		if (n <= 0)
			return n;
		size_t raw, done = relay_timed_take(spans, (size_t)n, false, to, size, &raw);
		/* In mode overwrite, the heads may have been overwritten since relay_consume_whole(). */
		if (raw == total && !relay_consume_valid(buf)) {
			relay_taken_note(buf->plan.to.bytes, done);
			relay_consume_end(buf);
			return (ssize_t)done;
		}
		relay_consume_abort(buf);
	}
	return -EBUSY;
}

int relay_consume_piece(struct rchan_buf *buf, struct relay_span *piece, uint64_t *time)
{
	size_t total;
	struct part part = {0};
	int n = relay_consume_whole(buf, SIZE_MAX, 1, piece, 1, &total);
	if (n == 1 && buf->is_timed) {
		part = part_at(piece->data, piece->length, false);
		piece->data = (const char *)piece->data + part.head;
		piece->length = part.length;
	}
	if (time)
		*time = part.time;
	return n;
}
