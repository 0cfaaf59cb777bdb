/* SPDX-License-Identifier: MIT */
/*
 * What a channel of 2003 holds in these tests, sub-buffer by sub-buffer:
 *
 *     +--------+-----------+--------+-------+--------+-------+--     --+--------+
 *     | header | (channel) | record | delta | record | delta |   ...   | footer | unused
 *     +--------+-----------+--------+-------+--------+-------+--     --+--------+
 *
 * Records are those of stress.h. Behind each stands its time delta, or NO_DELTA if it was written without: its stream
 * and sequence say which. Marks begin with a word like a record's, of stream STRESS_SUBBUF. The mark `channel` is in the
 * first sub-buffer only.
 */
#ifndef CLASSIC_MARKS_H
#define CLASSIC_MARKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/time.h>

#include "stress.h"

#define NO_DELTA UINT64_MAX

enum mark_kind { MARK_HEADER, MARK_CHANNEL, MARK_FOOTER };

struct mark {
	uint64_t word;
	uint64_t buffer_id;
	uint64_t time_us, tsc; /* as the callback was told */
	uint64_t using_tsc;
	uint64_t unused; /* of a footer: bytes from where it begins to the end of the sub-buffer */
};

enum {
	DELTA_BYTES = sizeof(uint64_t),
	MARK_BYTES = sizeof(struct mark),
	/* The two clocks of a moment are read one after the other. */
	CLOCK_SLACK_US = 1000
};

static inline bool has_delta(uint32_t stream, uint64_t sequence)
{
	return stress_mix((uint64_t)stream << 40 | sequence) % 4 != 0;
}

static inline uint64_t mark_us(struct timeval time)
{
	return (uint64_t)time.tv_sec * 1000000 + (uint64_t)time.tv_usec;
}

static inline int put_mark(char *to, enum mark_kind kind, struct mark mark)
{
	mark.word = stress_header(STRESS_SUBBUF, kind, STRESS_LENGTH_MIN);
	memcpy(to, &mark, sizeof(mark));
	return sizeof(mark);
}

/* The record, and room for its delta behind it. Returns the length of both. */
static inline uint32_t fill_record(char *to, uint32_t stream, uint64_t sequence, uint64_t delta)
{
	uint32_t length = stress_length(stream, (uint32_t)sequence);

	stress_fill(to, stream, (uint32_t)sequence);
	memcpy(to + length, &delta, sizeof(delta));
	return length + DELTA_BYTES;
}

/* Who walks along the stream as readers get it, and checks it. */
struct walk {
	bool loses;       /* sub-buffers may be overwritten */
	bool has_holes;   /* writers died */
	uint64_t bufsize; /* bytes of a sub-buffer */
	/* Called for each record and each mark, with all its bytes in `length`; may be NULL. */
	void (*enter)(struct walk *walk, const struct stress_record *record);
	void *client;

	bool inside; /* a sub-buffer: between header and footer */
	uint64_t next_id, last_delta, last_us;
	size_t used; /* bytes of the sub-buffer so far */
	struct mark header;
	uint64_t n_headers, n_footers;
};

static inline const char *walk_header(struct walk *w, const struct mark *mark)
{
	if (w->inside && !w->loses)
		return "no footer before this header";
	if (w->loses ? mark->buffer_id < w->next_id : mark->buffer_id != w->next_id)
		return "a header out of order";
	if (mark->using_tsc ? !mark->tsc : !!mark->tsc)
		return "a TSC that is not one";
	if (mark->time_us < w->last_us)
		return "begun before the last one ended";
	w->inside = true;
	w->next_id = mark->buffer_id + 1;
	w->last_delta = mark->using_tsc ? mark->tsc : 0;
	w->used = 0;
	w->header = *mark;
	w->n_headers++;
	return NULL;
}

static inline const char *walk_footer(struct walk *w, const struct mark *mark)
{
	if (!w->inside || mark->buffer_id != w->header.buffer_id)
		return "the footer of another sub-buffer";
	if (!w->has_holes && w->used + mark->unused != w->bufsize)
		return "a footer that is wrong about what is unused";
	if (mark->using_tsc != w->header.using_tsc || mark->time_us < w->header.time_us)
		return "ended before it began";
	if (mark->using_tsc ? mark->tsc < w->last_delta
	                    : w->last_delta > mark->time_us - w->header.time_us + CLOCK_SLACK_US)
		return "a record that is younger than the end";
	w->inside = false;
	w->last_us = mark->time_us;
	w->n_footers++;
	return NULL;
}

static inline const char *walk_mark(struct walk *w, const struct mark *mark, uint32_t kind)
{
	switch (kind) {
	case MARK_HEADER:
		return walk_header(w, mark);
	case MARK_CHANNEL:
		return w->inside && w->used == MARK_BYTES && mark->buffer_id == 0 ? NULL : "a channel that begins late";
	case MARK_FOOTER:
		return walk_footer(w, mark);
	default:
		return "an unknown mark";
	}
}

static inline const char *walk_delta(struct walk *w, const struct stress_record *record, const char *data)
{
	uint64_t delta;

	memcpy(&delta, data + record->length, sizeof(delta));
	if (!has_delta(record->stream, record->sequence))
		return delta == NO_DELTA ? NULL : "a delta where none was wanted";
	if (delta < w->last_delta)
		return "a delta that decreases";
	w->last_delta = delta;
	return w->inside ? NULL : "a record outside";
}

/* One record or mark. *length: receives its bytes. NULL, or what is wrong. */
static inline const char *walk_one(struct walk *w, const char *data, size_t available, size_t *length)
{
	struct stress_record record;
	struct mark mark;
	const char *wrong = stress_parse(data, available, &record);

	if (wrong)
		return wrong;
	*length = record.stream == STRESS_SUBBUF ? MARK_BYTES : record.length + DELTA_BYTES;
	if (*length > available)
		return "cut";
	if (record.stream == STRESS_SUBBUF) {
		memcpy(&mark, data, sizeof(mark));
		wrong = walk_mark(w, &mark, record.sequence);
	} else {
		wrong = walk_delta(w, &record, data);
	}
	w->used += *length;
	record.length = (uint32_t)*length;
	if (!wrong && w->enter)
		w->enter(w, &record);
	return wrong;
}

/* A piece, which ends between two of them. NULL, or what is wrong at byte *at. */
static inline const char *walk_piece(struct walk *w, const char *data, size_t length, size_t *at)
{
	size_t n;

	for (*at = 0; *at < length; *at += n) {
		const char *wrong = walk_one(w, data + *at, length - *at, &n);

		if (wrong)
			return wrong;
	}
	return NULL;
}

#endif
