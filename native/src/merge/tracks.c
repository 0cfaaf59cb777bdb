/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "merge/tracks.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

enum { FIRST_SLOTS = 64, NAME_BYTES = 300 };

static const char TYPE[] = "track_event_type", NAME[] = "slice_name", TRACK[] = "track_name",
		  COUNTER[] = "counter_value", SCOPE[] = "scope_";

/* --- the table --- */

void relay_tracks_free(struct relay_tracks *tracks)
{
	for (size_t i = 0; i < tracks->n_slots; i++)
		free(tracks->slots[i]);
	free(tracks->slots);
}

static uint64_t mix(uint64_t hash, uint64_t word)
{
	hash = (hash ^ word) * 0x9e3779b97f4a7c15;
	return hash ^ hash >> 32;
}

/* True if two tracks of this kind can be equal in all but their names. */
static bool is_told_by_name(const struct relay_track *track)
{
	return track->kind == RELAY_TRACK_NAMED || track->kind == RELAY_TRACK_COUNTER;
}

static uint64_t hash_of(const struct relay_track *key)
{
	uint64_t hash = mix(mix(key->identity, key->pid), (uint64_t)key->kind << 32);
	hash = mix(mix(hash, key->scope), (uintptr_t)key->parent);
	for (size_t i = 0; is_told_by_name(key) && i < key->name_length; i++)
		hash = mix(hash, (unsigned char)key->name[i]);
	return hash;
}

static bool is_same(const struct relay_track *track, const struct relay_track *key)
{
	if (track->hash != key->hash || track->kind != key->kind || track->identity != key->identity ||
	    track->pid != key->pid || track->scope != key->scope || track->parent != key->parent)
		return false;
	return !is_told_by_name(key) ||
	       (track->name_length == key->name_length && memcmp(track->name, key->name, key->name_length) == 0);
}

/* Return the slot of a track, or the empty slot where it can be stored. */
static struct relay_track **slot_of(struct relay_track **slots, size_t n_slots, const struct relay_track *key)
{
	size_t at = key->hash & (n_slots - 1);
	while (slots[at] && !is_same(slots[at], key))
		at = (at + 1) & (n_slots - 1);
	return &slots[at];
}

static bool make_room(struct relay_tracks *tracks)
{
	size_t n_slots = tracks->n_slots ? 2 * tracks->n_slots : FIRST_SLOTS;
	if (2 * (size_t)tracks->n + 2 <= tracks->n_slots)
		return true;
	struct relay_track **slots = calloc(n_slots, sizeof(struct relay_track *));
	if (!slots)
		return false;
	for (size_t i = 0; i < tracks->n_slots; i++)
		if (tracks->slots[i])
			*slot_of(slots, n_slots, tracks->slots[i]) = tracks->slots[i];
	free(tracks->slots);
	tracks->slots = slots;
	tracks->n_slots = n_slots;
	return true;
}

/* Return a copy, with the name in the same allocation. NULL: no memory. */
static struct relay_track *copy_track(const struct relay_track *key)
{
	struct relay_track *track = malloc(sizeof(*track) + key->name_length + 1);
	if (!track)
		return NULL;
	char *name = (char *)(track + 1);
	memcpy(name, key->name, key->name_length);
	name[key->name_length] = 0;
	*track = *key;
	track->name = name;
	return track;
}

/* Return the track that equals `key`, and set key->hash. NULL: there is none yet. */
static const struct relay_track *find_track(const struct relay_tracks *tracks, struct relay_track *key)
{
	key->hash = hash_of(key);
	return tracks->n_slots ? *slot_of(tracks->slots, tracks->n_slots, key) : NULL;
}

/* Add a track that find_track() has not found, and call announce(). NULL: no memory. */
static const struct relay_track *add(struct relay_tracks *tracks, struct relay_track *key)
{
	if (!make_room(tracks))
		return NULL;
	key->number = tracks->n + 1;
	struct relay_track *track = copy_track(key);
	if (!track)
		return NULL;
	tracks->n++;
	*slot_of(tracks->slots, tracks->n_slots, key) = track;
	tracks->announce(tracks->user, track);
	return track;
}

/* Return the track that equals `key`; add it if there is none. NULL: no memory. */
static const struct relay_track *get(struct relay_tracks *tracks, struct relay_track key)
{
	const struct relay_track *track = find_track(tracks, &key);
	return track ? track : add(tracks, &key);
}

void relay_put_track_name(struct relay_output *output, const struct relay_track *track, enum relay_escapes escapes)
{
	if (track->host && !track->parent) {
		relay_put_string(output, track->host->name, strlen(track->host->name), escapes);
		relay_put_text(output, ": ");
	}
	if (track->kind == RELAY_TRACK_CPU) {
		relay_put_text(output, "cpu ");
		relay_put_u64(output, track->scope);
	} else {
		relay_put_string(output, track->name, track->name_length, escapes);
	}
}

/* --- the track of an event --- */

static const struct relay_track *process_of(struct relay_tracks *tracks, const struct relay_event *event)
{
	const struct relay_traced *traced = event->stream->traced;
	return get(tracks, (struct relay_track){.kind = RELAY_TRACK_PROCESS,
	                                        .identity = traced->identity,
	                                        .pid = relay_event_pid(event),
	                                        .host = traced->host,
	                                        .name = traced->name,
	                                        .name_length = strlen(traced->name)});
}

/* Return a track in another one. NULL: no memory. */
static const struct relay_track *track_in(struct relay_tracks *tracks, const struct relay_track *parent,
                                          enum relay_track_kind kind, uint64_t scope, const char *name, size_t length)
{
	if (!parent)
		return NULL;
	return get(tracks, (struct relay_track){.parent = parent,
	                                        .kind = kind,
	                                        .identity = parent->identity,
	                                        .pid = parent->pid,
	                                        .host = parent->host,
	                                        .scope = scope,
	                                        .name = name,
	                                        .name_length = length});
}

static bool tells_threads(const struct relay_event *event)
{
	return event->stream->traced->vtid_at >= 0;
}

/* The first thread of a process has the process's number. Its track gets the program's name, because the kernel cuts names
 * of threads. */
static const struct relay_track *thread_of(struct relay_tracks *tracks, const struct relay_event *event)
{
	const struct relay_traced *traced = event->stream->traced;
	const struct relay_track *process = process_of(tracks, event);
	if (!process)
		return NULL;
	const uint32_t tid = relay_event_tid(event);
	struct relay_track key = {.parent = process,
	                          .kind = RELAY_TRACK_THREAD,
	                          .identity = process->identity,
	                          .pid = process->pid,
	                          .host = process->host,
	                          .scope = tid};
	const struct relay_track *track = find_track(tracks, &key);
	if (track)
		return track;
	/* Names are in no order, so they are searched only for a new track. */
	key.name = tid == traced->pid ? traced->name : relay_traced_thread_name(traced, process->pid, tid);
	key.name_length = strlen(key.name);
	return add(tracks, &key);
}

/* Return the track of an event's thread; if the thread is not known, that of the CPU in the process. */
static const struct relay_track *lane_of(struct relay_tracks *tracks, const struct relay_event *event)
{
	if (tells_threads(event))
		return thread_of(tracks, event);
	return track_in(tracks, process_of(tracks, event), RELAY_TRACK_CPU, event->stream->cpu, "", 0);
}

/* Return a track with this name, or the event's. If the event has a scope, the name ends with it, as in
 * "disk:request disk 3" for scope_disk, because viewers merge tracks of a process that have the same name. */
static const struct relay_track *named_track(struct relay_tracks *tracks, const struct relay_event *event,
                                             enum relay_track_kind kind, const struct relay_value *name,
                                             const struct relay_value *scope)
{
	char text[NAME_BYTES];
	const bool is_of_thread = tells_threads(event) && !scope->name && kind != RELAY_TRACK_COUNTER;
	const struct relay_track *parent = is_of_thread ? lane_of(tracks, event) : process_of(tracks, event);
	int length;
	if (name->length && !scope->name)
		return track_in(tracks, parent, kind, 0, (const char *)name->data, name->length);
	if (name->length)
		length =
		    snprintf(text, sizeof(text), "%.*s", (int)(name->length < NAME_BYTES ? name->length : NAME_BYTES),
		             (const char *)name->data);
	else
		length = snprintf(text, sizeof(text), "%s:%s", event->declared->provider, event->declared->name);
	if (scope->name && (size_t)length < sizeof(text))
		length += snprintf(text + length, sizeof(text) - (size_t)length, " %s %llu",
		                   scope->name + sizeof(SCOPE) - 1, (unsigned long long)scope->u);
	return track_in(tracks, parent, kind, scope->u, text, strlen(text));
}

/* --- roles --- */

bool relay_is_role(const char *name)
{
	return strcmp(name, TYPE) == 0 || strcmp(name, NAME) == 0 || strcmp(name, TRACK) == 0 ||
	       strcmp(name, COUNTER) == 0;
}

static bool is_number(const struct relay_value *value)
{
	return value->type->bytes != 0 && !value->is_array;
}

static char mark_type_of(const struct relay_value *value)
{
	if (value->type->kind == RELAY_FIELD_STRING)
		return value->length ? (char)value->data[0] : 0;
	return is_number(value) ? (char)value->u : 0;
}

const char *relay_mark_letter(const struct relay_value *value)
{
	static const char letters[][2] = {"B", "E", "I", "C"};
	if (strcmp(value->name, TYPE) != 0 || !is_number(value))
		return NULL;
	for (size_t i = 0; i < sizeof(letters) / sizeof(letters[0]); i++)
		if (value->u == (unsigned char)letters[i][0])
			return letters[i];
	return NULL;
}

struct roles {
	char type; /* 0: the event has none */
	struct relay_value name, track, counter, scope;
};

static void find_roles(struct roles *roles, const struct relay_event *event)
{
	struct relay_fields fields = relay_event_fields(event);
	struct relay_value value;
	while (relay_fields_next(&fields, &value)) {
		const bool is_string = value.type->kind == RELAY_FIELD_STRING;
		if (strcmp(value.name, TYPE) == 0)
			roles->type = mark_type_of(&value);
		else if (is_string && strcmp(value.name, NAME) == 0)
			roles->name = value;
		else if (is_string && strcmp(value.name, TRACK) == 0)
			roles->track = value;
		else if (is_number(&value) && strcmp(value.name, COUNTER) == 0)
			roles->counter = value;
		else if (is_number(&value) && value.own_name == value.name &&
		         strncmp(value.name, SCOPE, sizeof(SCOPE) - 1) == 0)
			roles->scope = value;
	}
	roles->counter.label = NULL; /* a counter's value is shown as a number */
}

static bool has_roles(const struct relay_trace_event *declared)
{
	for (uint32_t i = 0; i < declared->n_fields; i++)
		if (strcmp(declared->fields[i].name, TYPE) == 0 || strcmp(declared->fields[i].name, COUNTER) == 0)
			return true;
	return false;
}

static const struct relay_track *lost_track(struct relay_tracks *tracks, const struct relay_event *event)
{
	static const char name[] = "lost";
	if (relay_event_pid(event))
		return track_in(tracks, process_of(tracks, event), RELAY_TRACK_LOST, 0, name, sizeof(name) - 1);
	/* Of a buffer that several processes share, it is not known which of them has lost events. */
	return get(tracks, (struct relay_track){.kind = RELAY_TRACK_LOST,
	                                        .identity = event->stream->traced->identity,
	                                        .host = event->stream->traced->host,
	                                        .name = name,
	                                        .name_length = sizeof(name) - 1});
}

/* Return B, E, I or C; 0: the fields do not decide it. */
static char kind_of(const struct roles *roles)
{
	if (roles->counter.name && (!roles->type || roles->type == 'C'))
		return 'C';
	return roles->type == 'B' || roles->type == 'E' || roles->type == 'I' ? roles->type : 0;
}

struct relay_mark relay_mark_of(struct relay_tracks *tracks, const struct relay_event *event)
{
	struct roles roles = {0};
	if (event->lost)
		return (struct relay_mark){.type = 'I', .track = lost_track(tracks, event)};
	if (has_roles(event->declared))
		find_roles(&roles, event);
	const char kind = kind_of(&roles);
	if (!kind)
		return (struct relay_mark){.type = 'I', .track = lane_of(tracks, event)};
	struct relay_mark mark = {.type = kind, .has_roles = true, .name = roles.name, .counter = roles.counter};
	const bool is_of_thread = tells_threads(event) && !roles.track.length && !roles.scope.name;
	if (kind == 'C')
		mark.track = named_track(tracks, event, RELAY_TRACK_COUNTER, &roles.track, &roles.scope);
	else if (is_of_thread)
		mark.track = lane_of(tracks, event);
	else
		mark.track = named_track(tracks, event, RELAY_TRACK_NAMED, &roles.track, &roles.scope);
	return mark;
}

int relay_merge_name_thread(struct relay_merge *merge, int process, uint32_t pid, uint32_t tid, const char *name)
{
	struct relay_traced *traced = relay_merge_process(merge, process);
	return traced ? relay_traced_name_thread(traced, pid, tid, name) : -EINVAL;
}
