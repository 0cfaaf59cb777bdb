/* SPDX-License-Identifier: MIT */
/*
 * One stream of events: those of a process, or of several that share buffers, on a CPU. A source (struct relay_source)
 * returns the packets of the stream, from files or from a buffer; relay_stream_advance() makes events of them.
 */
#ifndef RELAYFS_MERGE_STREAM_H
#define RELAYFS_MERGE_STREAM_H

#include "merge/chosen.h"
#include "merge/clock_map.h"
#include "merge/filter.h"
#include "merge/losses.h"

#include <relayfs/merge.h>

/* What relay_source.next() returns, if not -errno. */
enum relay_source_state {
	RELAY_SOURCE_ENDED = 0,
	RELAY_SOURCE_PACKET = 1, /* there is a packet, which is valid until the next call */
	RELAY_SOURCE_EMPTY = 2   /* there is none now; later ones have no event older than `watermark` */
};

struct relay_source_packet {
	struct relay_packet head;
	const unsigned char *events; /* `length` bytes, which follow the head */
	size_t length;
	uint64_t watermark; /* in ticks of the process's clock */
	bool has_told;      /* of RELAY_SOURCE_EMPTY: the packets so far have counted all losses up to the watermark */
	bool tells_causes;  /* `lost` is set */
	uint64_t lost[RELAY_N_LOSS_CAUSES]; /* events lost since the packet before, by cause */
};

/* Where packets come from: the first member of struct file_source (file.c) and of struct live_source (live.c). The
 * members after has_grown() are for buffers to which programs may write; in a struct file_source they are 0, but for
 * is_finished. */
struct relay_source {
	int (*next)(struct relay_source *source, struct relay_source_packet *packet);
	void (*close)(struct relay_source *source);
	/* Of files that may grow: return whether next(), which has returned RELAY_SOURCE_EMPTY or was not called yet, would
	 * return a packet; and set *latest, ticks, to the end of the latest packet that is there, if it is later. NULL: the
	 * files do not grow. */
	bool (*has_grown)(struct relay_source *source, uint64_t *latest);
	void (*look)(struct relay_source *source, bool consumes); /* see relay_merge_look() */
	uint64_t begin;     /* ticks: from then on losses are counted; 0: from the first packet on */
	bool is_finished;   /* nothing will be written any more */
	bool is_behind;     /* a look would find something, and there is room for it */
	int error;          /* -errno, with which it has ended early; 0 */
	size_t queued;      /* bytes of packets that wait */
	uint64_t n_damaged; /* pieces with bytes that are no events; records whose time lay in the future */
};

/* The name of a thread; events have only its number. */
struct relay_thread_name {
	uint32_t pid, tid;
	char *name;
};

/* See struct relay_merge_host. */
struct relay_host {
	char *name;
	uint32_t number; /* from 0 */
	uint64_t max_error, est_error;
};

/* A process of a merge; see struct relay_merge_process. */
struct relay_traced {
	char *name;
	uint32_t identity, pid;
	int32_t vpid_at, vtid_at;
	struct relay_layouts *layouts;
	struct relay_filter *filter; /* NULL: all events are given out */
	struct relay_chosen *chosen; /* which triggers wait for its events */
	struct relay_losses *losses; /* why events in its files were lost; NULL: it is not known */
	struct relay_thread_name *threads;
	uint32_t n_threads;
	/* Of its clock: time = base + (ticks * mult >> shift) */
	uint64_t base, mult, freq;
	uint32_t shift;
	uint32_t clock;   /* enum relay_timestamp; 0: all its streams are files */
	uint32_t longest; /* the most bytes of an event that is copied from a buffer */
	bool is_past;
	uint64_t ahead, latest;        /* see relay_merge_set_ahead(), relay_merge_latest() */
	const struct relay_host *host; /* NULL: there is only one */
	struct relay_clock_map *map;   /* NULL: times are those of the process's clock */
};

/* 0; -EINVAL or -ENOMEM: `traced` refers to no memory then, and the caller still owns process->layouts. */
int relay_traced_init(struct relay_traced *traced, const struct relay_merge_process *process);
void relay_traced_free(struct relay_traced *traced);

/* Add the name of a thread. 0 or -ENOMEM. */
int relay_traced_name_thread(struct relay_traced *traced, uint32_t pid, uint32_t tid, const char *name);
/* Note why events were lost; 0; -ENOMEM; -EINVAL: a cause is wrong. */
int relay_traced_explain(struct relay_traced *traced, const struct relay_loss *losses, size_t n);
/* Return the name of a thread; "": it is not known. */
const char *relay_traced_thread_name(const struct relay_traced *traced, uint32_t pid, uint32_t tid);

/* Return the time since 1970, ns, by the process's clock; and by all machines' together. */
uint64_t relay_traced_own_time(const struct relay_traced *traced, uint64_t ticks);
uint64_t relay_traced_time(const struct relay_traced *traced, uint64_t ticks);

/* Return the time that puts an event into the order of all; see relay_merge_set_ahead(). */
static inline uint64_t relay_traced_order(const struct relay_traced *traced, uint64_t time)
{
	return time == UINT64_MAX ? time : time - (time < traced->ahead ? time : traced->ahead);
}

struct relay_stream;

/* An event; or, if `lost` is not 0, a loss: so many events were lost between the times `since` and `time`. Valid until
 * relay_stream_advance() is called again. */
struct relay_event {
	uint64_t time;
	const struct relay_stream *stream;
	const struct relay_trace_event *declared;
	const unsigned char *context, *fields, *end;
	uint64_t lost, since;
	uint32_t cause;   /* of a loss: enum relay_loss_cause */
	bool is_late;     /* the merge has given out a later event before */
	bool has_structs; /* some of its fields are in structs */
};

enum relay_stream_state { RELAY_STREAM_EVENT, RELAY_STREAM_EMPTY, RELAY_STREAM_ENDED };

struct relay_stream {
	struct relay_traced *traced;
	uint32_t cpu, number;
	struct relay_source *source;
	struct relay_event_cursor cursor;
	struct relay_event event; /* the next one; while the stream is empty, `time` is the watermark */
	enum relay_stream_state state;
	bool has_packets; /* the source has returned one, or has a `begin` */
	/* discarded: as the last packet said. last_end: up to which losses are told: the last packet's end, or a later
	 * watermark. */
	uint64_t discarded, last_end;
	/* Of the loss before the packet, the events by cause that were not given out yet; and its times. */
	uint64_t lost[RELAY_N_LOSS_CAUSES], lost_since, lost_time;
	uint64_t since, until, round;    /* round: relay_merge.round when it was last advanced while empty */
	struct relay_merge_stats *stats; /* of the merge; events are counted there */
	uint32_t knot;                   /* of relay_clock_map_knot(): that of `event` */
	/* The next event is not declared yet, in a file that is followed; and how often relay_merge_look_at_files() was
	 * called since. */
	bool is_waiting;
	uint32_t n_looks;
	uint32_t n_zero; /* events of the packet whose id and low bits of the time are 0 */
};

/* Go on to the next event; if the stream is empty, ask the source for a packet again. */
void relay_stream_advance(struct relay_stream *stream);

/* Count an event or loss that the merge outputs now, and set is_late. Inline, because it is done for each of many. */
static inline void relay_event_count(struct relay_event *event, struct relay_merge_stats *stats)
{
	const uint64_t time = relay_traced_order(event->stream->traced, event->time);
	const bool is_event = !event->lost, is_later = time > stats->time;
	stats->lost += event->lost;
	stats->events += is_event;
	event->is_late = time < stats->time && is_event;
	stats->late += event->is_late;
	stats->n_at_time = (is_later ? 0 : stats->n_at_time) + (time >= stats->time && is_event);
	stats->time = is_later ? time : stats->time;
}

/* Return the number of the process, or of the thread, that has written the event; 0: the event does not have it. */
uint32_t relay_event_pid(const struct relay_event *event);
uint32_t relay_event_tid(const struct relay_event *event);

/* Whether the event's stream is that of a CPU, and not of states, or of losses without a buffer. */
bool relay_is_of_cpu(const struct relay_event *event);

/* Return how far the time of an event may be off, ns, if the process has a map; UINT64_MAX: it is not known. */
uint64_t relay_event_error(const struct relay_event *event);

/* Return the word for the level of an event; NULL: it has no level. */
const char *relay_event_level(const struct relay_event *event);

/* --- fields --- */

/* The position of relay_fields_next() in the fields of an event. */
struct relay_fields {
	const struct relay_trace_event *declared;
	const struct relay_trace_field *field, *last;
	const unsigned char *at, *end;
	const char *before; /* the name of the previous field; "": there was none */
	uint32_t depth;     /* the number of structs that the previous field is in */
	bool has_structs;   /* some names have dots */
};

struct relay_value {
	const char *name;     /* of the field, after the names of its structs, each with a dot behind it */
	const char *own_name; /* the last part of `name` */
	const char *begun;    /* where the structs that begin here begin in `name`; they end at own_name */
	uint32_t n_ended;     /* structs of the previous field that this one is not in */
	const struct relay_field_type *type; /* of an array or a sequence: of each of its numbers */
	const char *label;                   /* of an enum; NULL: its value has none */
	bool is_array;                       /* also: a sequence */
	/* By its kind: u; i; d, of a float, too; `length` bytes of a string without its null byte, or of bytes; if is_array,
	 * `length` numbers, for relay_array_at(). */
	uint64_t u;
	int64_t i;
	double d;
	const unsigned char *data;
	size_t length;
};

struct relay_fields relay_event_fields(const struct relay_event *event);

/* Return one of the numbers of an array. */
struct relay_value relay_array_at(const struct relay_value *array, size_t i);

/* Return the name of the next struct whose first field this is, from the outermost one on; *length receives the name's
 * length. *at is value->begun at the first call; this function advances it. NULL: there are no more. */
static inline const char *relay_struct_next(const struct relay_value *value, const char **at, size_t *length)
{
	const char *name = *at;
	if (name == value->own_name)
		return NULL;
	*length = strcspn(name, ".");
	*at = name + *length + 1;
	return name;
}

/* Get the next field. false: there are no more, and the last fields->depth structs end here. */
bool relay_fields_next(struct relay_fields *fields, struct relay_value *value);

#endif
