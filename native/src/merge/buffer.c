/* SPDX-License-Identifier: MIT */
/*
 * A stream in a buffer that programs write to. Each look copies one piece of it (buffer/follow.h). The piece is checked at the next look,
 * or when the merge asks for a packet, so that the caller can read in between what the program has declared before; then it waits in
 * a queue. Looks go on while packets wait for relay_merge_limit(), because writers do not wait.
 *
 * The watermark of a stream whose queue is empty:
 *   - If the last look has found nothing more, the time just before it.
 *   - Otherwise the time of the last event. This alone would let a program hold up all others by writing old times faster than they are
 *     read. But when the reader leaves the sub-buffer that was the current one at some look, it has read all that was written before
 *     that look, so the time of that look is a lower bound, too.
 */
#define _GNU_SOURCE
#include "base/clock.h"
#include "buffer/follow.h"
#include "buffer/head.h"
#include "merge/merge.h"

#include <errno.h>
#include <stdlib.h>

enum {
	FIRST_ROOM = 1 << 16, /* of a piece; where an event is longer, up to ROOM_MAX */
	ROOM_MAX = 1 << 24,
	QUEUE_MAX = 1 << 22, /* bytes that wait, from which on nothing more is copied */
	AHEAD_S = 1,         /* how far a time may be ahead of the clock after the copy: of another CPU's clock */
	TRIES =
	    1000 /* looks in a row that end with -EAGAIN and do not move, after which the buffer counts as damaged */
};

/* Events that were checked, and a packet's head for them. */
struct chunk {
	struct chunk *next;
	struct relay_packet head;
	size_t length;
	unsigned char events[];
};

struct buffer_source {
	struct relay_source source;
	const struct relay_traced *traced;
	struct relay_follow follow;
	unsigned char *copy; /* of `piece`, `room` bytes */
	size_t room;
	struct relay_piece piece;
	bool is_copied; /* it has still to be checked */
	bool has_more;  /* the last look has not come to the end */
	bool is_over;   /* no look finds anything any more */
	uint32_t tries;
	struct chunk *first, **last, *given; /* the queue, and what the merge reads */
	/* In ticks. time: of the last event that was checked. looked: when the last look began. copied: after the last copy.
	 * told: `looked` when a packet was put into the queue. */
	uint64_t time, looked, copied, told;
	/* In ticks: a lower bound of times to come, and what it becomes when sub-buffer `pending_number` is left. */
	uint64_t floor, pending, pending_number;
	uint64_t n_told; /* records whose loss was told */
};

static uint64_t seconds(const struct buffer_source *buffer, uint64_t n)
{
	return n * buffer->traced->freq;
}

static void raise_floor(struct buffer_source *buffer)
{
	const struct relay_follow *follow = &buffer->follow;
	uint64_t head, second;
	if (follow->number <= buffer->pending_number && buffer->pending)
		return;
	buffer->floor = buffer->pending;
	buffer->pending = 0;
	if (relay_head(follow->buf, &head, &second))
		return;
	/* n_subbufs ahead at most: otherwise a wrong number that a program has stored would never be reached. */
	uint64_t number = relay_pos_number(follow->buf, head), most = follow->number + follow->buf->n_subbufs;
	buffer->pending = buffer->looked;
	buffer->pending_number = number < most ? number : most;
}

/* The buffer was reset since the look at `before`: what is written from then on is later. */
static void begin_anew(struct buffer_source *buffer, uint64_t before)
{
	buffer->pending = 0;
	buffer->floor = before > buffer->floor ? before : buffer->floor;
	buffer->time = before > buffer->time ? before : buffer->time;
}

/* Append a packet with the first `length` bytes of `copy` to the queue. */
static void put(struct buffer_source *buffer, struct chunk *chunk, uint64_t begin, uint64_t end, size_t length)
{
	chunk->next = NULL;
	chunk->head = (struct relay_packet){
	    .events_discarded = buffer->follow.lost, .timestamp_begin = begin, .timestamp_end = end};
	chunk->length = length;
	memcpy(chunk->events, buffer->copy, length);
	*buffer->last = chunk;
	buffer->last = &chunk->next;
	buffer->source.queued += sizeof(*chunk) + length;
	buffer->n_told = buffer->follow.lost;
	buffer->told = buffer->looked;
}

/* A single event is longer than the piece: have room for more of it. */
static bool grow(struct buffer_source *buffer)
{
	size_t room = 2 * buffer->room;
	if (buffer->piece.length < buffer->room || buffer->room >= buffer->follow.buf->subbuf_size || room > ROOM_MAX)
		return false;
	unsigned char *more = realloc(buffer->copy, room);
	if (!more)
		return false;
	buffer->copy = more;
	buffer->room = room;
	return true;
}

/* Check the piece and pass what is good of it. Returns its bytes. */
static size_t pass(struct buffer_source *buffer, uint64_t begin, uint64_t latest)
{
	const struct relay_piece *piece = &buffer->piece;
	struct relay_packet_checked checked;
	relay_packet_check(buffer->traced->layouts, buffer->copy, piece->length, begin, latest, &checked);
	relay_follow_pass(&buffer->follow, piece, checked.good_bytes, checked.n_events);
	bool is_cut = piece->length == buffer->room && checked.n_events;
	bool is_short = checked.fault == RELAY_PACKET_CUT || checked.fault == RELAY_PACKET_FIELDS;
	if (checked.fault && !is_cut && !(is_short && grow(buffer))) {
		relay_follow_leave(&buffer->follow, piece);
		buffer->source.n_damaged++;
	}
	if (checked.n_events)
		buffer->time = checked.time;
	return checked.good_bytes;
}

/* Check the piece that was copied, and put it into the queue. false: there is no memory for it, now. */
static bool settle(struct buffer_source *buffer)
{
	struct relay_event_head first;
	uint64_t latest = buffer->traced->is_past ? INT64_MAX : buffer->copied + seconds(buffer, AHEAD_S);
	uint64_t begin = buffer->piece.begin > buffer->time ? buffer->piece.begin : buffer->time;
	struct chunk *chunk = buffer->is_copied ? malloc(sizeof(*chunk) + buffer->piece.length) : NULL;
	if (!chunk)
		return !buffer->is_copied;
	buffer->is_copied = false;
	size_t length = pass(buffer, begin, latest);
	/* Small packets do not keep the memory of large ones. */
	struct chunk *small = realloc(chunk, sizeof(*chunk) + length);
	chunk = small ? small : chunk;
	/* Losses are told at the packet's begin: the time of the event before which they were seen. */
	if (length && relay_read_head(buffer->copy, length, begin, &first))
		put(buffer, chunk, first.time, buffer->time, length);
	else
		free(chunk);
	return true;
}

/* Losses without events are told once a second, and at the end. */
static void tell_losses(struct buffer_source *buffer)
{
	uint64_t looked = buffer->traced->is_past ? 0 : buffer->looked;
	uint64_t now = looked > buffer->time ? looked : buffer->time;
	bool is_time = buffer->is_over || buffer->looked - buffer->told >= seconds(buffer, 1);
	struct chunk *chunk = buffer->follow.lost > buffer->n_told && is_time ? malloc(sizeof(*chunk)) : NULL;
	if (chunk)
		put(buffer, chunk, now, now, 0);
}

/* A look would find something, and there is room for it. */
static void note_behind(struct buffer_source *buffer)
{
	buffer->source.is_behind = buffer->has_more && buffer->source.queued < QUEUE_MAX;
}

static void look(struct relay_source *source, bool consumes)
{
	struct buffer_source *buffer = (struct buffer_source *)source;
	if (!settle(buffer) || buffer->is_over || buffer->source.queued >= QUEUE_MAX)
		return;
	const struct relay_follow was = buffer->follow;
	const uint64_t before = buffer->looked;
	buffer->looked = relay_clock_now(buffer->traced->clock);
	raise_floor(buffer);
	int result = relay_follow_copy(&buffer->follow, &buffer->piece, buffer->copy, buffer->room);
	buffer->copied = relay_clock_now(buffer->traced->clock);
	bool has_moved = buffer->follow.number != was.number || buffer->follow.offset != was.offset;
	if (buffer->follow.resets != was.resets)
		begin_anew(buffer, before);
	buffer->tries = result == -EAGAIN && !has_moved ? buffer->tries + 1 : 0;
	if (result < 0 && (result != -EAGAIN || buffer->tries == TRIES))
		source->error = -EBADMSG;
	buffer->is_copied = result == 1;
	buffer->has_more = !source->error && (result == -EAGAIN || (result == 1 && buffer->piece.has_more));
	buffer->is_over = source->error || (result == 0 && (source->is_finished || buffer->traced->is_past));
	if (buffer->is_over && !source->error && relay_follow_end(&buffer->follow))
		source->error = -EBADMSG;
	if (!buffer->is_copied)
		tell_losses(buffer);
	note_behind(buffer);
	if (consumes && !source->error)
		relay_follow_consume(&buffer->follow, false);
}

static int next_packet(struct relay_source *source, struct relay_source_packet *packet)
{
	struct buffer_source *buffer = (struct buffer_source *)source;
	settle(buffer);
	free(buffer->given);
	buffer->given = buffer->first;
	if (buffer->given) {
		buffer->first = buffer->given->next;
		buffer->last = buffer->first ? buffer->last : &buffer->first;
		buffer->source.queued -= sizeof(*buffer->given) + buffer->given->length;
		packet->head = buffer->given->head;
		packet->events = buffer->given->events;
		packet->length = buffer->given->length;
		note_behind(buffer);
		return RELAY_SOURCE_PACKET;
	}
	packet->watermark = buffer->looked;
	packet->has_told = buffer->follow.lost == buffer->n_told;
	if (buffer->is_over)
		return source->error ? source->error : RELAY_SOURCE_ENDED;
	if (buffer->has_more || buffer->is_copied)
		packet->watermark = buffer->time > buffer->floor ? buffer->time : buffer->floor;
	return RELAY_SOURCE_EMPTY;
}

static void close_buffer(struct relay_source *source)
{
	struct buffer_source *buffer = (struct buffer_source *)source;
	free(buffer->given);
	for (struct chunk *next, *chunk = buffer->first; chunk; chunk = next) {
		next = chunk->next;
		free(chunk);
	}
	free(buffer->copy);
	free(buffer);
}

int relay_merge_add_buffer(struct relay_merge *merge, int process, uint32_t cpu, struct rchan_buf *buf, bool is_new)
{
	const struct relay_traced *traced = relay_merge_process(merge, process);
	struct buffer_source *buffer = calloc(1, sizeof(*buffer));
	unsigned char *copy = malloc(FIRST_ROOM);
	int err = !buffer || !copy ? -ENOMEM : !traced || !traced->clock || !buf->packets ? -EINVAL : 0;
	if (err) {
		free(copy);
		free(buffer);
		return err;
	}
	*buffer = (struct buffer_source){.source = {.next = next_packet,
	                                            .close = close_buffer,
	                                            .look = look,
	                                            .begin = traced->is_past ? 0 : relay_clock_now(traced->clock)},
	                                 .traced = traced,
	                                 .copy = copy,
	                                 .room = FIRST_ROOM};
	buffer->last = &buffer->first;
	relay_follow_start(&buffer->follow, buf, is_new);
	return relay_merge_add_source(merge, process, cpu, &buffer->source, 0);
}
