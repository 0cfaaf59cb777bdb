/* SPDX-License-Identifier: MIT */
/*
 * Making events of packets. events_discarded in a packet's head counts the events that the stream had lost up to the
 * packet's end. If it is more than in the packet before, a loss precedes the packet's events (struct relay_event, lost).
 * Its time is that of the packet's begin, because events are usually lost while there is no room for a new packet.
 */
#define _GNU_SOURCE
#include "merge/stream.h"

#include <errno.h>
#include <stdlib.h>

enum {
	CONTEXT_WORD = sizeof(uint32_t),
	LONGEST = 1 << 24,
	LOOKS_MAX = 64, /* of relay_merge_look_at_files(), until which the declaration of an event has arrived */
	ZEROS_MAX = 4096
};
static const uint64_t NS = 1000000000;

/* --- processes --- */

static bool is_in_context(const struct relay_layouts *layouts, int32_t at)
{
	return at < 0 || (uint32_t)at + CONTEXT_WORD <= layouts->context_bytes;
}

/* Store NS / freq as mult / 2^shift, with a mult of 64 significant bits, so that the error is less than a tick. */
static void set_clock(struct relay_traced *traced, uint64_t freq, uint64_t offset_s, uint64_t offset)
{
	unsigned __int128 quotient = ((unsigned __int128)NS << 64) / freq;
	uint32_t shift = 64;
	for (; quotient >> 64; quotient >>= 1)
		shift--;
	for (; !(quotient >> 63); shift++)
		quotient = ((unsigned __int128)NS << (shift + 1)) / freq;
	traced->mult = (uint64_t)quotient;
	traced->shift = shift;
	traced->base = offset_s * NS;
	traced->base = relay_traced_own_time(traced, offset);
}

uint64_t relay_traced_own_time(const struct relay_traced *traced, uint64_t ticks)
{
	return traced->base + (uint64_t)((unsigned __int128)ticks * traced->mult >> traced->shift);
}

uint64_t relay_traced_time(const struct relay_traced *traced, uint64_t ticks)
{
	const uint64_t time = relay_traced_own_time(traced, ticks);
	uint32_t near = 0;
	return traced->map ? relay_clock_map_time(traced->map, relay_clock_map_knot(traced->map, time, &near), time)
	                   : time;
}

int relay_traced_init(struct relay_traced *traced, const struct relay_merge_process *process)
{
	if (!process->freq || !is_in_context(process->layouts, process->vpid_at) ||
	    !is_in_context(process->layouts, process->vtid_at))
		return -EINVAL;
	*traced = (struct relay_traced){.name = strdup(process->name),
	                                .chosen = relay_chosen_new(),
	                                .identity = process->identity,
	                                .pid = process->pid,
	                                .vpid_at = process->vpid_at,
	                                .vtid_at = process->vtid_at,
	                                .layouts = process->layouts,
	                                .freq = process->freq,
	                                .clock = process->clock,
	                                .longest = process->longest ? process->longest : LONGEST,
	                                .is_past = process->is_past};
	/* perfetto.c uses this number as the index of the event's bit in sequence.interned, and for the iids of its names. */
	for (size_t i = 0; i < process->layouts->n; i++)
		if (process->layouts->at[i].event)
			process->layouts->at[i].event->id = i;
	set_clock(traced, process->freq, process->offset_s, process->offset);
	if (traced->name && traced->chosen)
		return 0;
	relay_chosen_free(traced->chosen);
	free(traced->name);
	return -ENOMEM;
}

void relay_traced_free(struct relay_traced *traced)
{
	relay_layouts_free(traced->layouts);
	relay_filter_free(traced->filter);
	relay_chosen_free(traced->chosen);
	relay_losses_free(traced->losses);
	for (uint32_t i = 0; i < traced->n_threads; i++)
		free(traced->threads[i].name);
	free(traced->threads);
	free(traced->map);
	free(traced->name);
}

int relay_traced_name_thread(struct relay_traced *traced, uint32_t pid, uint32_t tid, const char *name)
{
	const bool is_full = (traced->n_threads & (traced->n_threads - 1)) == 0; /* powers of two, and 0 */
	if (is_full) {
		const size_t n = traced->n_threads ? 2 * (size_t)traced->n_threads : 1;
		struct relay_thread_name *more = reallocarray(traced->threads, n, sizeof(*more));
		if (!more)
			return -ENOMEM;
		traced->threads = more;
	}
	struct relay_thread_name *last = &traced->threads[traced->n_threads];
	*last = (struct relay_thread_name){.pid = pid, .tid = tid, .name = strdup(name)};
	if (!last->name)
		return -ENOMEM;
	traced->n_threads++;
	return 0;
}

int relay_traced_explain(struct relay_traced *traced, const struct relay_loss *losses, size_t n)
{
	traced->losses = traced->losses ? traced->losses : relay_losses_new();
	int err = traced->losses ? 0 : -ENOMEM;
	for (size_t i = 0; i < n && !err; i++)
		err = losses[i].cause < RELAY_N_LOSS_CAUSES ? relay_losses_add(traced->losses, &losses[i]) : -EINVAL;
	return err;
}

const char *relay_traced_thread_name(const struct relay_traced *traced, uint32_t pid, uint32_t tid)
{
	for (uint32_t i = 0; i < traced->n_threads; i++)
		if (traced->threads[i].pid == pid && traced->threads[i].tid == tid)
			return traced->threads[i].name;
	return "";
}

/* --- events --- */

static uint32_t context_word(const struct relay_event *event, int32_t at)
{
	uint32_t word = 0;
	if (at >= 0 && event->context)
		memcpy(&word, event->context + at, sizeof(word));
	return word;
}

uint32_t relay_event_pid(const struct relay_event *event)
{
	const struct relay_traced *traced = event->stream->traced;
	return traced->pid ? traced->pid : context_word(event, traced->vpid_at);
}

uint32_t relay_event_tid(const struct relay_event *event)
{
	return context_word(event, event->stream->traced->vtid_at);
}

bool relay_is_of_cpu(const struct relay_event *event)
{
	return event->stream->cpu != RELAY_STATE_CPU && event->stream->cpu != RELAY_NO_CPU;
}

uint64_t relay_event_error(const struct relay_event *event)
{
	const struct relay_clock_map *map = event->stream->traced->map;
	return map ? map->knots[event->stream->knot].error : 0;
}

const char *relay_event_level(const struct relay_event *event)
{
	static const char *const words[RELAY_N_TRACE_LEVELS] = {
	    [RELAY_TRACE_LEVEL_EMERG] = "emerg",
	    [RELAY_TRACE_LEVEL_ALERT] = "alert",
	    [RELAY_TRACE_LEVEL_CRIT] = "crit",
	    [RELAY_TRACE_LEVEL_ERR] = "err",
	    [RELAY_TRACE_LEVEL_WARNING] = "warning",
	    [RELAY_TRACE_LEVEL_NOTICE] = "notice",
	    [RELAY_TRACE_LEVEL_INFO] = "info",
	    [RELAY_TRACE_LEVEL_DEBUG_SYSTEM] = "debug_system",
	    [RELAY_TRACE_LEVEL_DEBUG_PROGRAM] = "debug_program",
	    [RELAY_TRACE_LEVEL_DEBUG_PROCESS] = "debug_process",
	    [RELAY_TRACE_LEVEL_DEBUG_MODULE] = "debug_module",
	    [RELAY_TRACE_LEVEL_DEBUG_UNIT] = "debug_unit",
	    [RELAY_TRACE_LEVEL_DEBUG_FUNCTION] = "debug_function",
	    [RELAY_TRACE_LEVEL_DEBUG_LINE] = "debug_line",
	    [RELAY_TRACE_LEVEL_DEBUG] = "debug",
	};
	const uint32_t level = event->declared->level;
	return level && level <= RELAY_N_TRACE_LEVELS ? words[level - 1] : NULL;
}

static bool is_wanted(const struct relay_stream *stream, uint64_t time)
{
	return time >= stream->since && time <= stream->until;
}

/* Replace a time of the process's clock by the one that it is mapped to. false: it is of another map. Apart from its caller, which
 * most merges call without a map. */
__attribute__((noinline)) static bool map_time(struct relay_stream *stream, uint64_t *time)
{
	const struct relay_clock_map *map = stream->traced->map;
	if (*time < map->first || *time > map->last)
		return false;
	*time = relay_clock_map_time(map, relay_clock_map_knot(map, *time, &stream->knot), *time);
	return true;
}

/* Get the time of an event. false: it is not wanted. */
static inline bool get_time(struct relay_stream *stream, uint64_t ticks, uint64_t *time)
{
	*time = relay_traced_own_time(stream->traced, ticks);
	if (stream->traced->map && !map_time(stream, time))
		return false;
	return is_wanted(stream, *time);
}

/* True if all events of a packet are outside of what is wanted. */
static bool is_outside(const struct relay_stream *stream, const struct relay_packet *head)
{
	const struct relay_traced *traced = stream->traced;
	if (relay_traced_time(traced, head->timestamp_begin) > stream->until ||
	    relay_traced_time(traced, head->timestamp_end) < stream->since)
		return true;
	return traced->map && (relay_traced_own_time(traced, head->timestamp_begin) > traced->map->last ||
	                       relay_traced_own_time(traced, head->timestamp_end) < traced->map->first);
}

static bool meets_condition(const struct relay_stream *stream)
{
	struct relay_filter *filter = stream->traced->filter;
	int takes = filter ? relay_filter_takes(filter, &stream->cursor) : 1;
	if (takes < 0 && !stream->stats->error)
		stream->stats->error = takes;
	return takes > 0;
}

/* True if the declaration of an event may be on its way: files grow side by side. */
static bool waits_for_declaration(const struct relay_stream *stream)
{
	const struct relay_source *source = stream->source;
	return source->has_grown && !source->is_finished && stream->n_looks < LOOKS_MAX;
}

/* True if a packet has more events without an id and a time than a program writes. The holes of a sparse file are read as
 * such events, of which a file without a size on the disk would have any number. */
static inline bool is_of_holes(struct relay_stream *stream)
{
	const uint64_t mask = (1ull << RELAY_TRACE_TIME_BITS) - 1;
	const bool is_zero = !stream->cursor.id && !(stream->cursor.time & mask);
	return is_zero && ++stream->n_zero > ZEROS_MAX;
}

/* Go on to the next event of the packet. false: there are no more, or it waits for a declaration, or the rest of the
 * packet is not valid. */
static bool next_in_packet(struct relay_stream *stream)
{
	struct relay_event_cursor *cursor = &stream->cursor;
	while (cursor->at < cursor->stop) {
		const enum relay_packet_fault fault = relay_next_event(cursor);
		stream->is_waiting = fault == RELAY_PACKET_UNDECLARED && waits_for_declaration(stream);
		if (stream->is_waiting)
			return false;
		stream->n_looks = 0;
		if (fault != RELAY_PACKET_GOOD || is_of_holes(stream)) {
			cursor->at = cursor->stop;
			stream->stats->damaged++;
			return false;
		}
		const struct relay_trace_event *declared = cursor->layout->event;
		if (!declared)
			continue;
		uint64_t time;
		if (!get_time(stream, cursor->time, &time) || !meets_condition(stream))
			continue;
		stream->event = (struct relay_event){.time = time,
		                                     .stream = stream,
		                                     .declared = declared,
		                                     .has_structs = cursor->layout->has_structs,
		                                     .context = cursor->context,
		                                     .fields = cursor->context + cursor->layouts->context_bytes,
		                                     .end = cursor->at};
		return true;
	}
	return false;
}

/* Make the loss for the next cause the next event. false: there is none. */
static bool next_loss(struct relay_stream *stream)
{
	/* Last those of which no cause is known. */
	for (uint32_t i = 1; i <= RELAY_N_LOSS_CAUSES; i++) {
		const uint32_t cause = i % RELAY_N_LOSS_CAUSES;
		if (!stream->lost[cause])
			continue;
		stream->event = (struct relay_event){.time = stream->lost_time,
		                                     .stream = stream,
		                                     .lost = stream->lost[cause],
		                                     .since = stream->lost_since,
		                                     .cause = cause};
		stream->lost[cause] = 0;
		return true;
	}
	return false;
}

/* Note how many events were lost before a packet, which begins at `time`, by cause. Events may also be lost while the packet is written; an empty
 * packet tells of losses that may be later, as it does at the end of a recording. */
static void note_loss(struct relay_stream *stream, const struct relay_source_packet *packet, uint64_t time)
{
	const uint64_t lost = packet->head.events_discarded - stream->discarded;
	const uint64_t end =
	    packet->length ? relay_traced_time(stream->traced, packet->head.timestamp_end) : UINT64_MAX;
	stream->lost_time = time;
	stream->lost_since = relay_traced_time(stream->traced, stream->last_end);
	if (packet->tells_causes)
		memcpy(stream->lost, packet->lost, sizeof(stream->lost));
	else
		relay_losses_divide(stream->traced->losses, stream->cpu, stream->lost_since, end, lost, stream->lost);
}

/* Begin a packet. true: stream->event is a loss that comes before its events. */
static bool enter(struct relay_stream *stream, const struct relay_source_packet *packet)
{
	const struct relay_packet *head = &packet->head;
	uint64_t time;
	const bool has_lost = get_time(stream, head->timestamp_begin, &time) && stream->has_packets &&
	                      head->events_discarded > stream->discarded;
	if (has_lost)
		note_loss(stream, packet, time);
	stream->has_packets = true;
	stream->discarded = head->events_discarded;
	stream->last_end = head->timestamp_end;
	stream->n_zero = 0;
	stream->cursor = (struct relay_event_cursor){.layouts = stream->traced->layouts,
	                                             .at = packet->events,
	                                             .stop = packet->events + packet->length,
	                                             .time = head->timestamp_begin,
	                                             .end = head->timestamp_end};
	if (is_outside(stream, head))
		stream->cursor.at = stream->cursor.stop;
	return has_lost && next_loss(stream);
}

void relay_stream_advance(struct relay_stream *stream)
{
	struct relay_source_packet packet;
	stream->state = RELAY_STREAM_EVENT;
	if (next_loss(stream))
		return;
	while (!next_in_packet(stream)) {
		if (stream->is_waiting) {
			stream->event.time = UINT64_MAX;
			stream->state = RELAY_STREAM_EMPTY;
			return;
		}
		packet = (struct relay_source_packet){.has_told = false};
		int state = stream->source->next(stream->source, &packet);
		if (state == RELAY_SOURCE_PACKET) {
			if (enter(stream, &packet))
				return;
			continue;
		}
		/* relay_merge_look_at_files() finds out when files have grown; meanwhile the merge does not wait for them. */
		stream->event.time =
		    stream->source->has_grown ? UINT64_MAX : relay_traced_time(stream->traced, packet.watermark);
		if (packet.has_told && packet.watermark > stream->last_end)
			stream->last_end = packet.watermark;
		stream->state = state == RELAY_SOURCE_EMPTY ? RELAY_STREAM_EMPTY : RELAY_STREAM_ENDED;
		if (state < 0) {
			stream->source->error = state;
			stream->stats->error = stream->stats->error ? stream->stats->error : state;
		}
		return;
	}
}
