/* SPDX-License-Identifier: MIT */
/*
 * The source of a buffer or ring to which programs may write (live.h). Each look() copies one piece of it. The piece is
 * checked at the next look(), or when the merge asks for a packet, so that the caller can add the program's new
 * declarations in between. Its events become a packet in a queue. A packet may wait in the queue until
 * relay_merge_limit() lets its events out; look() copies on meanwhile, because writers do not wait.
 *
 * The watermark of a stream whose queue is empty:
 *   - If the last look() has copied all that there was, the time just before it.
 *   - Otherwise the time of the last event, or `floor`, if that is later. Without `floor`, a program could delay the events
 *     of all others by writing events with old times faster than they are read. raise_floor() stores the time of a look()
 *     and the position up to which programs had written then. When the reader has passed that position, it has read all
 *     that was written before that look(), so the stored time is a lower bound, too.
 *
 * It never goes back: while a program is writing an event, the time of the last one would be earlier than the look() before,
 * up to which the merge may have output events of other streams already.
 */
#define _GNU_SOURCE
#include "base/clock.h"
#include "merge/live.h"

#include <errno.h>
#include <stdlib.h>

enum {
	FIRST_ROOM = 1 << 16, /* bytes of a piece; grow() makes room for a longer event, up to relay_traced.longest */
	QUEUE_MAX = 1 << 22,  /* nothing is copied while the queue has more bytes */
	/* A buffer is damaged after so many looks in a row in which copy() returns -EAGAIN and the reader does not move. */
	TRIES = 1000
};

/* A packet in the queue: a head, and events that were checked. */
struct chunk {
	struct chunk *next;
	struct relay_packet head;
	uint64_t lost[RELAY_N_LOSS_CAUSES]; /* since the packet before */
	size_t length;
	unsigned char events[];
};

struct live_source {
	struct relay_source source;
	const struct relay_traced *traced;
	struct relay_followed *followed;
	unsigned char *copy; /* of followed->piece, `room` bytes */
	size_t room;
	bool is_copied; /* `copy` has a piece that is not checked yet */
	bool has_more;  /* there was more to copy at the last look() */
	bool is_over;   /* nothing will be copied any more: all was, or the memory is damaged */
	uint32_t tries;
	struct chunk *first, **last, *given; /* the queue; the packet that the merge has */
	/* In ticks. time: of the last event that was checked. looked: when the last look() began. copied: after the last
	 * copy. told: `looked` when the last packet was put into the queue. watermark: the latest one that the merge was told. */
	uint64_t time, looked, copied, told, watermark;
	/* floor, pending: in ticks; no later event is older than `floor`, which becomes `pending` after followed->number has
	 * exceeded pending_number; 0: none. pending_number: in units of followed->number. */
	uint64_t floor, pending, pending_number;
	/* followed->lost and followed->refused in the last packet that was put into the queue; and the refused events of each
	 * cause up to it, from the beginning of the memory. */
	uint64_t n_told, n_refused_told, refused[RELAY_N_REFUSALS];
	bool has_base; /* `refused` has those of followed->base */
	uint64_t n_left, n_left_told,
	    n_jumps_told; /* events or sub-buffers that followed->leave() has left; and up to that packet */
};

static uint64_t seconds(const struct live_source *live, uint64_t n)
{
	return n * live->traced->freq;
}

static void raise_floor(struct live_source *live)
{
	struct relay_followed *followed = live->followed;
	if (followed->number <= live->pending_number && live->pending)
		return;
	live->floor = live->pending;
	live->pending = followed->head(followed, &live->pending_number) ? live->looked : 0;
}

/* If a program has stored a wrong position, the reader might never reach it. To be called after copy(), which moves the reader
 * to the oldest events: before, all up to the position may have been overwritten. */
static void bound_pending(struct live_source *live)
{
	const uint64_t most = live->followed->number + live->followed->ahead;
	live->pending_number = live->pending_number < most ? live->pending_number : most;
}

/* The buffer was reset after the look() at `before`, so what is in it now was written later. */
static void begin_anew(struct live_source *live, uint64_t before)
{
	live->pending = 0;
	memset(live->refused, 0, sizeof(live->refused));
	live->n_refused_told = 0;
	live->floor = before > live->floor ? before : live->floor;
	live->time = before > live->time ? before : live->time;
}

/* Move as many of `left` refused events to `refused`, by cause, as the counts say; return how many are left. */
static uint64_t take_refused(struct live_source *live, const uint64_t counts[RELAY_N_REFUSALS], uint64_t left,
                             uint64_t *parts)
{
	for (uint32_t i = 0; i < RELAY_N_REFUSALS; i++) {
		const uint64_t more = counts[i] > live->refused[i] ? counts[i] - live->refused[i] : 0;
		const uint64_t part = more < left ? more : left;
		live->refused[i] += part;
		left -= part;
		if (parts)
			parts[RELAY_LOSS_FULL + i] = part;
	}
	return left;
}

/* Divide what was lost since the last packet among its causes. The counts of refused events are those of this moment, so they
 * may be more than the reader has found to be lost; of several causes, the first is then supposed. */
static void divide(struct live_source *live, uint64_t parts[RELAY_N_LOSS_CAUSES])
{
	const struct relay_followed *followed = live->followed;
	uint64_t counts[RELAY_N_REFUSALS];
	memset(parts, 0, RELAY_N_LOSS_CAUSES * sizeof(*parts));
	if (followed->lost <= live->n_told)
		return;
	live->followed->count_refused(live->followed, counts);
	if (!live->has_base)
		take_refused(live, counts, followed->base, NULL);
	live->has_base = true;
	const uint64_t lost = followed->lost - live->n_told;
	uint64_t refused = followed->refused > live->n_refused_told ? followed->refused - live->n_refused_told : 0;
	refused = refused < lost ? refused : lost;
	parts[RELAY_LOSS_UNKNOWN] = take_refused(live, counts, refused, parts);
	const uint32_t cause = live->n_left > live->n_left_told         ? RELAY_LOSS_DAMAGED
	                       : followed->n_jumps > live->n_jumps_told ? RELAY_LOSS_OVERWRITTEN
	                                                                : RELAY_LOSS_TORN;
	parts[cause] += lost - refused;
	live->n_left_told = live->n_left;
	live->n_jumps_told = followed->n_jumps;
}

/* Append a packet with the first `length` bytes of `copy` to the queue. */
static void put(struct live_source *live, struct chunk *chunk, uint64_t begin, uint64_t end, size_t length)
{
	chunk->next = NULL;
	chunk->head = (struct relay_packet){
	    .events_discarded = live->followed->lost, .timestamp_begin = begin, .timestamp_end = end};
	divide(live, chunk->lost);
	chunk->length = length;
	memcpy(chunk->events, live->copy, length);
	*live->last = chunk;
	live->last = &chunk->next;
	live->source.queued += sizeof(*chunk) + length;
	live->n_told = live->followed->lost;
	live->n_refused_told = live->followed->refused;
	live->told = live->looked;
}

/* Double `room`, because the piece has filled it with a part of a single event. false: the piece has not, or the event
 * cannot be longer, or no memory. */
static bool grow(struct live_source *live)
{
	size_t room = 2 * live->room;
	if (live->followed->piece.length < live->room || live->room >= live->followed->longest ||
	    room > live->traced->longest)
		return false;
	unsigned char *more = realloc(live->copy, room);
	if (!more)
		return false;
	live->copy = more;
	live->room = room;
	return true;
}

/* Check the piece and pass its valid events. Returns the bytes of these. */
static size_t pass(struct live_source *live, uint64_t begin, uint64_t latest)
{
	struct relay_followed *followed = live->followed;
	struct relay_packet_checked checked;
	relay_packet_check(live->traced->layouts, live->copy, followed->piece.length, begin, latest, &checked);
	followed->pass(followed, checked.good_bytes, checked.n_events);
	bool is_cut = followed->piece.length == live->room && checked.n_events;
	bool is_short = checked.fault == RELAY_PACKET_CUT || checked.fault == RELAY_PACKET_FIELDS;
	if (checked.fault && !is_cut && !(is_short && grow(live))) {
		followed->leave(followed);
		live->n_left++;
		live->source.n_damaged++;
	}
	if (checked.n_events)
		live->time = checked.time;
	return checked.good_bytes;
}

/* Check the piece that was copied, if there is one, and put its events into the queue. false: there is no memory, and the
 * next call tries it again. */
static bool settle(struct live_source *live)
{
	struct relay_event_head first;
	const struct relay_piece *piece = &live->followed->piece;
	uint64_t latest = live->traced->is_past ? INT64_MAX : live->copied + seconds(live, RELAY_AHEAD_S);
	uint64_t begin = piece->begin > live->time ? piece->begin : live->time;
	struct chunk *chunk = live->is_copied ? malloc(sizeof(*chunk) + piece->length) : NULL;
	if (!chunk)
		return !live->is_copied;
	live->is_copied = false;
	size_t length = pass(live, begin, latest);
	/* A packet of few events should not keep the memory of the whole piece. */
	struct chunk *small = realloc(chunk, sizeof(*chunk) + length);
	chunk = small ? small : chunk;
	/* The packet begins with its first event, so losses that were found before get the time of this event. */
	if (length && relay_read_head(live->copy, length, begin, &first))
		put(live, chunk, first.time, live->time, length);
	else
		free(chunk);
	return true;
}

/* Put a packet without events into the queue if there are new losses and the last packet is a second old, or at the end. */
static void tell_losses(struct live_source *live)
{
	uint64_t looked = live->traced->is_past ? 0 : live->looked;
	uint64_t now = looked > live->time ? looked : live->time;
	bool is_time = live->is_over || live->looked - live->told >= seconds(live, 1);
	struct chunk *chunk = live->followed->lost > live->n_told && is_time ? malloc(sizeof(*chunk)) : NULL;
	if (chunk)
		put(live, chunk, now, now, 0);
}

/* Update is_behind: another look() would copy more, and the queue has room for it. */
static void note_behind(struct live_source *live)
{
	live->source.is_behind = live->has_more && live->source.queued < QUEUE_MAX;
}

static void look(struct relay_source *source, bool consumes)
{
	struct live_source *live = (struct live_source *)source;
	if (!settle(live) || live->is_over || live->source.queued >= QUEUE_MAX)
		return;
	struct relay_followed *followed = live->followed;
	const struct relay_followed was = *followed;
	const uint64_t before = live->looked;
	live->looked = relay_clock_now(live->traced->clock);
	raise_floor(live);
	int result = followed->copy(followed, live->copy, live->room);
	bound_pending(live);
	live->copied = relay_clock_now(live->traced->clock);
	bool has_moved = followed->number != was.number || followed->offset != was.offset;
	source->n_damaged += followed->n_damaged - was.n_damaged;
	if (followed->resets != was.resets)
		begin_anew(live, before);
	live->tries = result == -EAGAIN && !has_moved ? live->tries + 1 : 0;
	if (result < 0 && (result != -EAGAIN || live->tries == TRIES))
		source->error = -EBADMSG;
	live->is_copied = result == 1;
	live->has_more = !source->error && (result == -EAGAIN || (result == 1 && followed->piece.has_more));
	live->is_over = source->error || (result == 0 && (source->is_finished || live->traced->is_past));
	if (live->is_over && !source->error && followed->end(followed))
		source->error = -EBADMSG;
	if (!live->is_copied)
		tell_losses(live);
	note_behind(live);
	if (consumes && !source->error && followed->consume)
		followed->consume(followed);
}

static int next_packet(struct relay_source *source, struct relay_source_packet *packet)
{
	struct live_source *live = (struct live_source *)source;
	settle(live);
	free(live->given);
	live->given = live->first;
	if (live->given) {
		live->first = live->given->next;
		live->last = live->first ? live->last : &live->first;
		live->source.queued -= sizeof(*live->given) + live->given->length;
		packet->head = live->given->head;
		packet->tells_causes = true;
		memcpy(packet->lost, live->given->lost, sizeof(packet->lost));
		packet->events = live->given->events;
		packet->length = live->given->length;
		note_behind(live);
		return RELAY_SOURCE_PACKET;
	}
	packet->watermark = live->looked;
	packet->has_told = live->followed->lost == live->n_told;
	if (live->is_over)
		return source->error ? source->error : RELAY_SOURCE_ENDED;
	if (live->has_more || live->is_copied)
		packet->watermark = live->time > live->floor ? live->time : live->floor;
	live->watermark = packet->watermark > live->watermark ? packet->watermark : live->watermark;
	packet->watermark = live->watermark;
	return RELAY_SOURCE_EMPTY;
}

static void close_live(struct relay_source *source)
{
	struct live_source *live = (struct live_source *)source;
	free(live->given);
	for (struct chunk *next, *chunk = live->first; chunk; chunk = next) {
		next = chunk->next;
		free(chunk);
	}
	free(live->copy);
	live->followed->close(live->followed);
	free(live);
}

int relay_merge_add_followed(struct relay_merge *merge, int process, uint32_t cpu, struct relay_followed *followed)
{
	const struct relay_traced *traced = relay_merge_process(merge, process);
	struct live_source *live = calloc(1, sizeof(*live));
	unsigned char *copy = malloc(FIRST_ROOM);
	int err = !live || !copy ? -ENOMEM : !traced || !traced->clock ? -EINVAL : 0;
	if (err) {
		free(copy);
		free(live);
		followed->close(followed);
		return err;
	}
	*live = (struct live_source){.source = {.next = next_packet,
	                                        .close = close_live,
	                                        .look = look,
	                                        .begin = traced->is_past ? 0 : relay_clock_now(traced->clock)},
	                             .traced = traced,
	                             .followed = followed,
	                             .copy = copy,
	                             .room = FIRST_ROOM};
	live->last = &live->first;
	return relay_merge_add_source(merge, process, cpu, &live->source, 0);
}

void relay_times_begin(struct relay_times *times)
{
	times->latest = relay_clock_now(times->traced->clock) + RELAY_AHEAD_S * times->traced->freq;
}

uint64_t relay_times_next(struct relay_times *times, uint64_t time, uint64_t *n_damaged)
{
	if (time > times->latest) {
		time = times->latest;
		++*n_damaged;
	}
	if (time > times->last)
		times->last = time;
	return times->last;
}
