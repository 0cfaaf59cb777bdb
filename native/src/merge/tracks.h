/* SPDX-License-Identifier: MIT */
/*
 * How viewers of tracks show events, by Perfetto's convention for events of the kernel, which is described in its sources
 * in docs/reference/kernel-track-event.md. Fields with these names decide it:
 *
 *     track_event_type   a character or a string: B begins a slice, E ends the last slice of its track, I is an instant
 *     slice_name         the name of a slice or an instant; default: the event's name
 *     counter_value      a number that is drawn over time
 *     track_name         the name of the track, which is in the track of the thread, or, for a counter, of the process.
 *                        Default: a slice is on the track of its thread, or, if the thread is not known, on one with
 *                        the event's name; the track of a counter has the event's name
 *     scope_...          a number; each value has a track of its own
 *
 * All other events are instants on the track of their thread; if the thread is not known, on that of their CPU in their
 * process. Threads are known if the context of events has _vtid.
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
	const struct relay_track *parent; /* NULL: it is in no other track, as a process's own track */
	enum relay_track_kind kind;
	uint32_t number;               /* from 1 */
	uint32_t identity, pid;        /* of the process */
	const struct relay_host *host; /* of the process; NULL: there is only one */
	uint64_t scope;                /* number of the thread or CPU, or the value of a field scope_... */
	uint64_t hash;
	const char *name; /* may not be UTF-8; "" for a CPU, or a thread whose name is not known */
	size_t name_length;
};

struct relay_tracks {
	struct relay_track **slots; /* n_slots, a power of two, of which less than half are in use */
	size_t n_slots;
	uint32_t n;
	/* Called with each new track, before relay_mark_of() returns it. */
	void (*announce)(void *user, const struct relay_track *track);
	void *user;
};

/* Return the letter that a number in a field track_event_type stands for. NULL: it is no such field, or none of B E I C. */
const char *relay_mark_letter(const struct relay_value *value);

void relay_tracks_free(struct relay_tracks *tracks);

/* Write the name of a track; of a process, behind that of its machine, if there are several: "web-1: app". */
void relay_put_track_name(struct relay_output *output, const struct relay_track *track, enum relay_escapes escapes);

/* How a viewer shows an event. */
struct relay_mark {
	char type;      /* B, E, I or C */
	bool has_roles; /* fields decided this; those for which relay_is_role() is true are not shown as arguments */
	const struct relay_track *track; /* NULL: no memory */
	struct relay_value name;         /* slice_name; length 0: the event's name */
	struct relay_value counter;      /* of type C: counter_value */
};

/* Find out how viewers show an event, or a loss, which is an instant on a track "lost". */
struct relay_mark relay_mark_of(struct relay_tracks *tracks, const struct relay_event *event);

/* True for the names in the table above, except scope_... */
bool relay_is_role(const char *name);

#endif
