/* SPDX-License-Identifier: MIT */
/*
 * Copying the unread data of a buffer beside its consumer, without the reader lock and without consuming.
 *
 *     at         consumer      head, when the copying began
 *     v          v             v
 *     |aaaa|bbbb....|ccccHHHcc|dddddd|eee                . padding  H hole
 *      '-- consumed meanwhile, '-- not copied
 *          and not overwritten
 *
 * What was unread at the beginning is copied also if it is consumed meanwhile, as long as it is not overwritten: a copy is
 * given out if afterwards head has not lapped it. But a consumer frees the claims that were holes before its position. So
 * if it has passed a hole since, the copying goes on at the consumer's position.
 */
#define _GNU_SOURCE
#include "buffer/consume.h"
#include "buffer/timed.h"
#include "buffer/walk.h"

#include <stdlib.h>
#include <string.h>

/* Tries to copy data that is not overwritten meanwhile, before the caller has to call again; the most spans of a copy. */
enum { COPY_TRIES = 100, COPY_SPANS = 64 };

/* A change needs another HANDOVER_VERSION (relayfs_fuse/fs/versions.py). */
struct relay_peek {
	struct rchan_buf *buf;                 /* of this process: relay_buf_peek_restore() leaves it */
	struct relay_consumer first, at;       /* the first byte that was copied, and the next */
	uint64_t head, head_records, produced; /* the end of what is to be copied */
	uint64_t first_holes, holes;           /* relay_n_holes() of the consumer when it was not after `first`, `at` */
	uint32_t resets;                       /* relay_control.resets, to which the other fields belong */
	bool has_skipped, was_reset;
};

static uint32_t resets_of(const struct rchan_buf *buf)
{
	/* Relaxed: if the buffer is reset meanwhile, the next comparison finds it. */
	return __atomic_load_n(&buf->control->resets, __ATOMIC_RELAXED);
}

/* Go on at the consumer's position, or at the oldest data that is not overwritten, if that is later. 0 or -EBADMSG. */
static int go_to_consumer(struct relay_peek *peek, const struct relay_consumer *consumer)
{
	peek->at = *consumer;
	peek->holes = relay_n_holes(consumer);
	return relay_consumer_catch_up(peek->buf, &peek->at);
}

static int see_end(struct relay_peek *peek)
{
	struct relay_walk walk = {.buf = peek->buf};
	int err = relay_walk_see_head(&walk);
	peek->head = walk.head;
	peek->head_records = walk.head_records;
	peek->produced = walk.produced;
	return err;
}

static int begin(struct relay_peek *peek)
{
	struct relay_consumer consumer;
	peek->resets = resets_of(peek->buf);
	if (relay_consumer_read(peek->buf, &consumer) || go_to_consumer(peek, &consumer))
		return -EBADMSG;
	peek->first = peek->at;
	peek->first_holes = peek->holes;
	return see_end(peek);
}

/* Skip data that was overwritten, or in which the consumer has passed holes. 0 or -EBADMSG. */
static int keep_up(struct relay_peek *peek)
{
	struct relay_consumer consumer;
	uint64_t head, records;
	if (relay_consumer_read(peek->buf, &consumer) || relay_settled_head(peek->buf, &head, &records))
		return -EBADMSG;
	bool is_before = consumer.position <= peek->at.position;
	if (is_before)
		peek->holes = relay_n_holes(&consumer);
	if (!relay_is_lapped(peek->buf, head, relay_pos_number(peek->buf, peek->at.position)) &&
	    (is_before || peek->holes == relay_n_holes(&consumer)))
		return 0;
	peek->has_skipped = true;
	return go_to_consumer(peek, &consumer);
}

/* True if what was copied from peek->at on was neither overwritten nor reset, and all holes were known. */
static bool is_intact(const struct relay_peek *peek)
{
	struct rchan_buf *buf = peek->buf;
	struct relay_consumer now;
	if (relay_consume_stands(buf, relay_pos_number(buf, peek->at.position)) || relay_consumer_read(buf, &now))
		return false;
	return resets_of(buf) == peek->resets &&
	       (now.position <= peek->at.position || relay_n_holes(&now) == peek->holes);
}

/* Find the data at peek->at, at most `limit` bytes with heads. Returns as relay_walk_data(). */
static int find_data(const struct relay_peek *peek, size_t limit, struct relay_walk *walk, struct relay_plan *plan,
                     struct relay_span *spans)
{
	*plan = (struct relay_plan){.from = peek->at, .to = peek->at};
	*walk = (struct relay_walk){.buf = peek->buf,
	                            .plan = plan,
	                            .head = peek->head,
	                            .head_records = peek->head_records,
	                            .produced = peek->produced,
	                            .spans = spans,
	                            .n_spans = COPY_SPANS,
	                            .max_bytes = limit};
	return relay_walk_data(walk);
}

/* Copy the data of the spans. */
static size_t copy_spans(const struct relay_walk *walk, unsigned char *to)
{
	size_t done = 0;
	for (size_t i = 0; i < walk->n_used; i++) {
		memcpy(to + done, walk->spans[i].data, walk->spans[i].length);
		done += walk->spans[i].length;
	}
	return done;
}

/* Copy the next data; *end is the state behind it. Returns the number of bytes; -EMSGSIZE; -EINPROGRESS: call again;
 * -EBADMSG. The result is valid if is_intact() is true afterwards. */
static ssize_t copy_next(const struct relay_peek *peek, void *to, size_t size, struct relay_consumer *end)
{
	struct relay_walk walk;
	struct relay_plan plan;
	struct relay_span spans[COPY_SPANS];
	const bool is_timed = peek->buf->is_timed;
	const size_t limit = is_timed && size < SIZE_MAX - RELAY_HEAD_BYTES ? size + RELAY_HEAD_BYTES : size;
	int err = find_data(peek, limit, &walk, &plan, spans);
	size_t raw = walk.total, done;
	if (!is_timed)
		done = copy_spans(&walk, to);
	else
		done = relay_timed_take(spans, walk.n_used, walk.total == limit, to, size, &raw);
	if (walk.total && !raw)
		return -EMSGSIZE;
	if (raw < walk.total) {
		err = find_data(peek, raw, &walk, &plan, spans);
		if (walk.total != raw)
			return -EINPROGRESS;
	}
	*end = plan.to;
	return done || !err ? (ssize_t)done : err;
}

static ssize_t copy_data(struct relay_peek *peek, void *to, size_t size)
{
	struct rchan_buf *buf = peek->buf;
	relay_work_begin(buf);
	for (int tries = 0; tries < COPY_TRIES && buf->work; tries++) {
		if (resets_of(buf) != peek->resets)
			return 0;
		if (keep_up(peek))
			return -EBADMSG;
		if (peek->at.position >= peek->head)
			return 0;
		struct relay_consumer end = peek->at;
		ssize_t result = copy_next(peek, to, size, &end);
		if (!is_intact(peek)) {
			relay_damage_forget(&buf->damage);
			continue;
		}
		peek->at = end;
		if (result != -EINPROGRESS)
			return result;
	}
	return -EBUSY;
}

struct relay_peek *relay_buf_peek_open(struct rchan_buf *buf)
{
	struct relay_peek *peek = buf->packets ? NULL : calloc(1, sizeof(*peek));
	if (!peek) {
		errno = buf->packets ? EINVAL : ENOMEM;
		return NULL;
	}
	peek->buf = buf;
	pthread_mutex_lock(&buf->walking);
	int err = begin(peek);
	pthread_mutex_unlock(&buf->walking);
	if (!err)
		return peek;
	free(peek);
	errno = -err;
	return NULL;
}

ssize_t relay_buf_peek_copy(struct relay_peek *peek, void *to, size_t size)
{
	pthread_mutex_lock(&peek->buf->walking);
	ssize_t result = copy_data(peek, to, size);
	pthread_mutex_unlock(&peek->buf->walking);
	return result;
}

int relay_buf_peek_more(struct relay_peek *peek)
{
	pthread_mutex_lock(&peek->buf->walking);
	bool was_reset = resets_of(peek->buf) != peek->resets;
	peek->was_reset |= was_reset;
	int err = was_reset ? begin(peek) : see_end(peek);
	pthread_mutex_unlock(&peek->buf->walking);
	return err;
}

void relay_buf_peek_rewind(struct relay_peek *peek)
{
	peek->at = peek->first;
	peek->holes = peek->first_holes;
	peek->has_skipped = false;
}

int relay_buf_peek_has_skipped(const struct relay_peek *peek)
{
	return peek->has_skipped || peek->was_reset;
}

size_t relay_buf_peek_save(const struct relay_peek *peek, void *to, size_t size)
{
	if (size >= sizeof(*peek))
		memcpy(to, peek, sizeof(*peek));
	return sizeof(*peek);
}

int relay_buf_peek_restore(struct relay_peek *peek, const void *from, size_t size)
{
	struct rchan_buf *buf = peek->buf;
	if (size != sizeof(*peek))
		return -EINVAL;
	memcpy(peek, from, size);
	peek->buf = buf;
	return 0;
}

void relay_buf_peek_close(struct relay_peek *peek)
{
	free(peek);
}
