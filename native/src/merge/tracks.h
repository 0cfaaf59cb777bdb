/* SPDX-License-Identifier: MIT */
/*
 * What viewers of tracks make of events, by the convention that Perfetto has for the kernel's
 * (docs/reference/kernel-track-event.md there). An event whose fields have these names is more than an instant:
 *
 *     track_event_type   B begins a slice, E ends the last one of its track, I is an instant; a character or a string
 *     slice_name         of B and I; without it the event's own
 *     counter_value      a number that is drawn over time
 *     track_name         on which track, of the thread, or, if it is a counter's, of the process; without it a slice is on its
 *                        thread's, or, if events do not tell threads, on one named like the event, and a counter is
 *                        named like the event
 *     scope_...          a number: there is a track for each
 *
 * All other events are instants on the track of their thread; if events do not tell threads, of their process on their CPU.
 */
#ifndef RELAYFS_MERGE_TRACKS_H
#define RELAYFS_MERGE_TRACKS_H

#include "merge/merge.h"
#include "merge/output.h"

enum relay_track_kind {
	RELAY_TRACK_PROCESS,
	RELAY_TRACK_THREAD,
	RELAY_TRACK_CPU,
	RELAY_TRACK_NAMED,
	RELAY_TRACK_COUNTER,
	RELAY_TRACK_LOST
};

struct relay_track {
	const struct relay_track *parent; /* NULL: it is in none, as those of processes */
	enum relay_track_kind kind;
	uint32_t number;        /* from 1 */
	uint32_t identity, pid; /* of the process */
	uint64_t scope;         /* of a thread or a CPU, or as a field says */
	uint64_t hash;
	const char *name; /* UTF-8 if the process wrote it so; of CPUs, and of threads without a name, none */
	size_t name_length;
};

struct relay_tracks {
	struct relay_track **slots; /* n_slots, a power of two, of which less than half are in use */
	size_t n_slots;
	uint32_t n;
	/* A new track is told before it is used. */
	void (*announce)(void *user, const struct relay_track *track);
	void *user;
};

void relay_tracks_free(struct relay_tracks *tracks);

/* A track's name. */
void relay_put_track_name(struct relay_output *output, const struct relay_track *track, enum relay_escapes escapes);

/* What an event is in a viewer. */
struct relay_mark {
	char type;      /* B, E, I or C */
	bool has_roles; /* fields have made it this: those for which relay_is_role() is true are no arguments */
	const struct relay_track *track; /* NULL: no memory */
	struct relay_value name;         /* slice_name; length 0: the event's own */
	struct relay_value counter;      /* of C: its value */
};

/* A loss is an instant on a track of its own. */
struct relay_mark relay_mark_of(struct relay_tracks *tracks, const struct relay_event *event);

/* True for the names of fields that decide what an event is, except scope_... */
bool relay_is_role(const char *name);

#endif
