/* SPDX-License-Identifier: MIT */
/*
 * The merge is a tree of losers, in which streams are compared by their next events. Each stream is a leaf. Two streams
 * meet at each node: the one with the later event stays there, the other one goes on to the node above. The last one is
 * the winner, whose event is returned. When the winner's stream has advanced, only the nodes above its leaf change:
 *
 *                 winner 3 (stream 2)                 streams      0  1  2  3
 *                   node 1:  5 (1)                    next event   7  5  3  9
 *             node 2:  7 (0)   node 3:  9 (3)
 *
 * The key that is compared is time << 64 | is_event << 32 | number of the stream. The time is that of
 * relay_traced_order(); in the key of an empty stream it is that of its watermark. Such a key is less than those of
 * events with this time, because the stream may still get an event with this time. When an empty stream wins, it is
 * advanced. If it is still empty and wins again, no event of another stream can be returned either.
 */
#define _GNU_SOURCE
#include "merge/merge.h"

#include "base/clock.h"
#include "trace/condition.h"

#include <errno.h>
#include <stdlib.h>

typedef unsigned __int128 merge_key;
static const merge_key ENDED = ~(merge_key)0;
static const uint64_t IS_EVENT = 1ull << 32;
/* If all queues together have more bytes, only streams with empty queues are read: the merge may be waiting for one of
 * them. */
static const size_t QUEUED_MAX = 64 << 20;

struct relay_merge {
	struct relay_traced **processes;
	struct relay_stream **streams;
	struct relay_host **hosts;
	uint32_t n_processes, n_streams, n_hosts;
	merge_key *tree; /* n_streams nodes, the first of which is not used */
	merge_key winner;
	bool is_built;             /* the tree, since streams or their order have changed last */
	struct relay_stream *last; /* whose event was given out by the last call */
	uint64_t round; /* ends when relay_merge_next() returns NULL; in a round, each empty stream is advanced once */
	uint64_t since, until, limit;
	uint64_t n_to_skip;     /* of the events of the time stats.time */
	uint64_t n_generations; /* of triggers */
	bool takes_no_buffers;
	struct relay_conditions *conditions; /* the first one is the merge's; NULL: there is none */
	struct relay_merge_stats stats;
};

struct relay_merge *relay_merge_new(uint64_t since, uint64_t until)
{
	struct relay_merge *merge = calloc(1, sizeof(*merge));
	if (!merge)
		return NULL;
	*merge = (struct relay_merge){
	    .since = since, .until = until, .limit = UINT64_MAX, .round = 1, .winner = ENDED, .is_built = true};
	return merge;
}

static void free_stream(struct relay_stream *stream)
{
	stream->source->close(stream->source);
	free(stream);
}

static void free_process(struct relay_traced *traced)
{
	if (traced)
		relay_traced_free(traced);
	free(traced);
}

void relay_merge_free(struct relay_merge *merge)
{
	if (!merge)
		return;
	for (uint32_t i = 0; i < merge->n_streams; i++)
		free_stream(merge->streams[i]);
	for (uint32_t i = 0; i < merge->n_processes; i++)
		free_process(merge->processes[i]);
	for (uint32_t i = 0; i < merge->n_hosts; i++)
		free(merge->hosts[i]); /* and its name, which is in the same memory */
	free(merge->streams);
	free(merge->processes);
	free(merge->hosts);
	free(merge->tree);
	free(merge->conditions);
	free(merge);
}

int relay_merge_set_condition(struct relay_merge *merge, const struct relay_conditions *conditions)
{
	if (!relay_conditions_are_sound(conditions) || !conditions->n_conditions || merge->n_processes ||
	    merge->conditions)
		return -EINVAL;
	merge->conditions = malloc(sizeof(*conditions));
	if (!merge->conditions)
		return -ENOMEM;
	*merge->conditions = *conditions;
	return 0;
}

/* Return an array of n pointers with room for one more; it is doubled when n is a power of two. NULL: no memory, and the
 * array is unchanged. */
static void *with_room(void *array, uint32_t n)
{
	return n & (n - 1) ? array : reallocarray(array, n ? 2 * (size_t)n : 1, sizeof(void *));
}

int relay_merge_add_host(struct relay_merge *merge, const struct relay_merge_host *host)
{
	const size_t length = strlen(host->name) + 1;
	struct relay_host **hosts = with_room(merge->hosts, merge->n_hosts);
	merge->hosts = hosts ? hosts : merge->hosts;
	struct relay_host *added = hosts ? malloc(sizeof(*added) + length) : NULL;
	if (!added)
		return -ENOMEM;
	*added = (struct relay_host){.name = (char *)(added + 1),
	                             .number = merge->n_hosts,
	                             .max_error = host->max_error,
	                             .est_error = host->est_error};
	memcpy(added->name, host->name, length);
	hosts[merge->n_hosts++] = added;
	return (int)merge->n_hosts;
}

const struct relay_host *relay_merge_host(const struct relay_merge *merge, uint32_t number)
{
	return number < merge->n_hosts ? merge->hosts[number] : NULL;
}

int relay_merge_map_clock(struct relay_merge *merge, int process, const struct relay_time_knot *knots, uint32_t n,
                          uint64_t first, uint64_t last)
{
	if (!relay_merge_process(merge, process))
		return -EINVAL;
	struct relay_traced *traced = merge->processes[process];
	struct relay_clock_map *map = relay_clock_map_new(knots, n, first, last);
	if (!map)
		return -errno;
	free(traced->map);
	traced->map = map;
	for (uint32_t i = 0; i < merge->n_streams; i++) {
		struct relay_stream *stream = merge->streams[i];
		stream->knot = stream->traced == traced ? 0 : stream->knot;
		if (stream->traced == traced)
			relay_clock_map_knot(map, relay_traced_own_time(traced, stream->cursor.time), &stream->knot);
	}
	return 0;
}

int relay_merge_add_process(struct relay_merge *merge, const struct relay_merge_process *process)
{
	struct relay_traced *traced = calloc(1, sizeof(*traced));
	struct relay_traced **processes = with_room(merge->processes, merge->n_processes);
	merge->processes = processes ? processes : merge->processes;
	struct relay_filter *filter = merge->conditions ? relay_filter_new(merge->conditions) : NULL;
	bool has_memory = traced && processes && (filter || !merge->conditions);
	int err = process->host > merge->n_hosts ? -EINVAL : -ENOMEM;
	if (has_memory && process->host <= merge->n_hosts)
		err = relay_traced_init(traced, process);
	if (err) {
		relay_layouts_free(process->layouts);
		relay_filter_free(filter);
		free(traced);
		return err;
	}
	traced->filter = filter;
	traced->host = process->host ? merge->hosts[process->host - 1] : NULL;
	uint32_t number = 0;
	/* The first number that is free, because its process was removed. */
	while (number < merge->n_processes && merge->processes[number])
		number++;
	merge->processes[number] = traced;
	merge->n_processes += number == merge->n_processes;
	return (int)number;
}

struct relay_traced *relay_merge_process(const struct relay_merge *merge, int process)
{
	return process >= 0 && (uint32_t)process < merge->n_processes ? merge->processes[process] : NULL;
}

static merge_key key_of(const struct relay_stream *stream)
{
	uint64_t order = stream->number;
	if (stream->state == RELAY_STREAM_ENDED)
		return ENDED;
	order |= stream->state == RELAY_STREAM_EVENT ? IS_EVENT : 0;
	return (merge_key)relay_traced_order(stream->traced, stream->event.time) << 64 | order;
}

/* Streams, or their order, have changed: the tree is to be built again, unless there are none. */
static void note_change(struct relay_merge *merge)
{
	merge->is_built = merge->n_streams == 0;
}

int relay_merge_add_source(struct relay_merge *merge, int process, uint32_t cpu, struct relay_source *source,
                           uint64_t watermark)
{
	struct relay_traced *traced = relay_merge_process(merge, process);
	struct relay_stream *stream = calloc(1, sizeof(*stream));
	struct relay_stream **streams = with_room(merge->streams, merge->n_streams);
	merge_key *tree = reallocarray(merge->tree, (size_t)merge->n_streams + 1, sizeof(*tree));
	merge->streams = streams ? streams : merge->streams;
	merge->tree = tree ? tree : merge->tree;
	bool is_refused = !traced || (source->look && merge->takes_no_buffers);
	int err = is_refused ? -EINVAL : stream && streams && tree ? 0 : -ENOMEM;
	if (err) {
		source->close(source);
		free(stream);
		return err;
	}
	*stream = (struct relay_stream){.traced = traced,
	                                .cpu = cpu,
	                                .number = merge->n_streams,
	                                .source = source,
	                                .has_packets = source->begin > 0,
	                                .last_end = source->begin,
	                                .state = RELAY_STREAM_EMPTY,
	                                .since = merge->since,
	                                .until = merge->until,
	                                .stats = &merge->stats};
	stream->event.time = relay_traced_time(stream->traced, watermark);
	merge->streams[merge->n_streams++] = stream;
	note_change(merge);
	return 0;
}

struct relay_source *relay_merge_source(const struct relay_merge *merge, int process, uint32_t cpu)
{
	const struct relay_traced *traced = relay_merge_process(merge, process);
	for (uint32_t i = 0; traced && i < merge->n_streams; i++)
		if (merge->streams[i]->traced == traced && merge->streams[i]->cpu == cpu)
			return merge->streams[i]->source;
	return NULL;
}

/* --- the tree --- */

/* Update the nodes above the leaf of a stream whose key has changed. */
static void play(struct relay_merge *merge, const struct relay_stream *stream)
{
	merge_key key = key_of(stream);
	for (size_t node = (merge->n_streams + stream->number) / 2; node > 0; node /= 2) {
		merge_key other = merge->tree[node];
		bool loses = other < key;
		merge->tree[node] = loses ? key : other;
		key = loses ? other : key;
	}
	merge->winner = key;
}

/* Fill in a node and all nodes below it, and return the winner there. The depth of the recursion is the number of bits of
 * n_streams. */
static merge_key build(struct relay_merge *merge, size_t node)
{
	if (node >= merge->n_streams)
		return key_of(merge->streams[node - merge->n_streams]);
	merge_key left = build(merge, 2 * node), right = build(merge, 2 * node + 1);
	merge->tree[node] = left < right ? right : left;
	return left < right ? left : right;
}

/* --- the next event --- */

static const struct relay_event *give_out(struct relay_merge *merge, struct relay_stream *stream)
{
	merge->last = stream;
	relay_event_count(&stream->event, &merge->stats);
	return &stream->event;
}

/* True if relay_merge_skip() was called for an event, which is the stream's next one. */
static inline bool skips(struct relay_merge *merge, const struct relay_stream *stream)
{
	const bool skips = merge->n_to_skip && stream->event.time == merge->stats.time && !stream->event.lost;
	merge->n_to_skip -= skips;
	return skips;
}

const struct relay_event *relay_merge_next(struct relay_merge *merge)
{
	struct relay_stream *stream = merge->last;
	merge->last = NULL;
	if (stream)
		relay_stream_advance(stream);
	if (!merge->is_built)
		merge->winner = build(merge, 1);
	else if (stream)
		play(merge, stream);
	merge->is_built = true;
	while (merge->winner != ENDED && (uint64_t)(merge->winner >> 64) <= merge->limit) {
		stream = merge->streams[(uint32_t)merge->winner];
		const bool is_event = stream->state == RELAY_STREAM_EVENT;
		if (is_event && !skips(merge, stream))
			return give_out(merge, stream);
		if (!is_event && stream->round == merge->round)
			break;
		stream->round = is_event ? stream->round : merge->round;
		relay_stream_advance(stream);
		play(merge, stream);
	}
	merge->round++;
	return NULL;
}

/* --- streams to which programs may write --- */

uint64_t relay_merge_look(struct relay_merge *merge, bool consumes)
{
	uint64_t looked = UINT64_MAX;
	for (uint32_t i = 0; i < merge->n_processes; i++) {
		const struct relay_traced *traced = merge->processes[i];
		if (!traced || !traced->clock || traced->is_past)
			continue;
		uint64_t now = relay_traced_time(traced, relay_clock_now(traced->clock));
		looked = now < looked ? now : looked;
	}
	size_t queued = 0;
	for (uint32_t i = 0; i < merge->n_streams; i++)
		queued += merge->streams[i]->source->queued;
	for (uint32_t i = 0; i < merge->n_streams; i++) {
		const struct relay_stream *stream = merge->streams[i];
		struct relay_source *source = stream->source;
		const bool has_room = queued < QUEUED_MAX || !source->queued;
		if (source->look && stream->state != RELAY_STREAM_ENDED && has_room)
			source->look(source, consumes);
	}
	return looked;
}

/* Have a stream that is empty be asked for its next event. */
static void ask(struct relay_merge *merge, struct relay_stream *stream)
{
	stream->event.time = 0;
	note_change(merge);
}

uint64_t relay_merge_look_at_files(struct relay_merge *merge)
{
	uint64_t latest = 0;
	for (uint32_t i = 0; i < merge->n_streams; i++) {
		struct relay_stream *stream = merge->streams[i];
		struct relay_source *source = stream->source;
		uint64_t ticks = 0;
		const uint64_t next = relay_traced_order(stream->traced, stream->event.time);
		const bool is_behind = next <= merge->limit && next != UINT64_MAX;
		if (!source->has_grown || stream->state == RELAY_STREAM_ENDED || is_behind)
			continue;
		const bool has_grown = source->has_grown(source, &ticks);
		stream->n_looks += stream->is_waiting;
		if ((has_grown || stream->is_waiting) && stream->state == RELAY_STREAM_EMPTY)
			ask(merge, stream);
		struct relay_traced *traced = stream->traced;
		const uint64_t time = ticks ? relay_traced_time(traced, ticks) : 0;
		traced->latest = time > traced->latest ? time : traced->latest;
		const uint64_t order = relay_traced_order(traced, time);
		latest = order > latest ? order : latest;
	}
	return latest;
}

int relay_merge_set_ahead(struct relay_merge *merge, int process, uint64_t ahead)
{
	struct relay_traced *traced = relay_merge_process(merge, process);
	if (!traced)
		return -EINVAL;
	traced->ahead = ahead;
	note_change(merge);
	return 0;
}

void relay_merge_skip(struct relay_merge *merge, uint64_t time, uint64_t n)
{
	merge->stats.time = time;
	merge->stats.n_at_time = merge->n_to_skip = n;
}

void relay_merge_limit(struct relay_merge *merge, uint64_t time)
{
	merge->limit = time;
}

static bool is_behind(const struct relay_merge *merge, uint64_t until)
{
	for (uint32_t i = 0; i < merge->n_streams; i++)
		if (merge->streams[i]->source->is_behind && merge->streams[i]->event.time <= until)
			return true;
	return false;
}

bool relay_merge_is_behind(const struct relay_merge *merge)
{
	return is_behind(merge, UINT64_MAX);
}

bool relay_merge_is_behind_limit(const struct relay_merge *merge)
{
	return is_behind(merge, merge->limit);
}

uint64_t relay_merge_reached(const struct relay_merge *merge)
{
	uint64_t next = (uint64_t)(merge->winner >> 64);
	return next > merge->limit || merge->winner == ENDED ? merge->limit : next - (next > 0);
}

bool relay_merge_takes_no_buffers(struct relay_merge *merge)
{
	for (uint32_t i = 0; i < merge->n_streams; i++)
		if (merge->streams[i]->source->look)
			return false;
	merge->takes_no_buffers = true;
	return true;
}

struct relay_layouts *relay_merge_layouts(struct relay_merge *merge, int process)
{
	const struct relay_traced *traced = relay_merge_process(merge, process);
	for (uint32_t i = 0; traced && i < merge->n_streams; i++)
		if (merge->streams[i]->traced == traced)
			merge->streams[i]->cursor.layout = NULL; /* the caller may add layouts, which moves it */
	return traced ? traced->layouts : NULL;
}

void relay_merge_finish(struct relay_merge *merge, int process)
{
	const struct relay_traced *traced = relay_merge_process(merge, process);
	for (uint32_t i = 0; i < merge->n_streams; i++) {
		struct relay_stream *stream = merge->streams[i];
		if (stream->traced != traced)
			continue;
		stream->source->is_finished = true;
		if (stream->source->has_grown && stream->state == RELAY_STREAM_EMPTY)
			ask(merge, stream);
	}
}

int relay_merge_process_stats(const struct relay_merge *merge, int process, struct relay_merge_process_stats *stats)
{
	const struct relay_traced *traced = relay_merge_process(merge, process);
	if (!traced)
		return -EINVAL;
	*stats = (struct relay_merge_process_stats){0};
	for (uint32_t i = 0; i < merge->n_streams; i++) {
		const struct relay_stream *stream = merge->streams[i];
		if (stream->traced != traced)
			continue;
		stats->n_open += stream->state != RELAY_STREAM_ENDED;
		stats->n_damaged += stream->source->n_damaged;
		if (stream->source->error) {
			stats->error = stream->source->error;
			stats->cpu = stream->cpu;
		}
	}
	return 0;
}

int relay_merge_remove(struct relay_merge *merge, int process)
{
	if (!relay_merge_process(merge, process))
		return -EINVAL;
	struct relay_traced *traced = merge->processes[process];
	uint32_t n = 0;
	for (uint32_t i = 0; i < merge->n_streams; i++) {
		struct relay_stream *stream = merge->streams[i];
		if (stream->traced == traced) {
			merge->last = merge->last == stream ? NULL : merge->last;
			free_stream(stream);
			continue;
		}
		stream->number = n;
		merge->streams[n++] = stream;
	}
	merge->n_streams = n;
	merge->winner = ENDED;
	note_change(merge);
	free_process(traced);
	merge->processes[process] = NULL;
	return 0;
}

uint64_t relay_merge_next_generation(struct relay_merge *merge)
{
	return ++merge->n_generations;
}

bool relay_merge_is_ended(const struct relay_merge *merge)
{
	return merge->is_built && !merge->last && merge->winner == ENDED;
}

void relay_merge_stats(const struct relay_merge *merge, struct relay_merge_stats *stats)
{
	*stats = merge->stats;
}
