/* SPDX-License-Identifier: MIT */
/*
 * One stream of events: what a process wrote on a CPU. A source gives its packets, be they in a file or copied from a buffer; here
 * they become events.
 */
#ifndef RELAYFS_MERGE_STREAM_H
#define RELAYFS_MERGE_STREAM_H

#include "merge/filter.h"

#include <relayfs/merge.h>

/* What a source has to say, if it is no -errno. */
enum relay_source_state {
	RELAY_SOURCE_ENDED = 0,
	RELAY_SOURCE_PACKET = 1, /* a packet: valid until the next call */
	RELAY_SOURCE_EMPTY = 2   /* none now, and nothing older than `watermark` will come */
};

struct relay_source_packet {
	struct relay_packet head;
	const unsigned char *events; /* what follows the head */
	size_t length;
	uint64_t watermark; /* in ticks of the process's clock */
	bool has_told;      /* RELAY_SOURCE_EMPTY: all losses up to the watermark were in packets */
};

/* Where packets come from: the first member of struct file_source (file.c) and of struct buffer_source (buffer.c). The members after
 * `close` are of sources that are still written to, and 0 otherwise. */
struct relay_source {
	int (*next)(struct relay_source *source, struct relay_source_packet *packet);
	void (*close)(struct relay_source *source);
	void (*look)(struct relay_source *source, bool consumes); /* see relay_merge_look() */
	uint64_t begin;     /* ticks: since then losses are told; 0: since the first packet */
	bool is_finished;   /* nothing will be written any more */
	bool is_behind;     /* a look would find something, and there is room for it */
	int error;          /* why it has ended early */
	size_t queued;      /* bytes of packets that wait */
	uint64_t n_damaged; /* pieces with bytes that are no events */
};

/* The name of a thread, which no event has. */
struct relay_thread_name {
	uint32_t pid, tid;
	char *name;
};

/* A process that is merged. */
struct relay_traced {
	char *name;
	uint32_t identity, pid;
	int32_t vpid_at, vtid_at;
	struct relay_layouts *layouts;
	struct relay_filter *filter; /* NULL: all events are given out */
	struct relay_thread_name *threads;
	uint32_t n_threads;
	/* Of its clock: time = base + (ticks * mult >> shift) */
	uint64_t base, mult, freq;
	uint32_t shift;
	uint32_t clock; /* enum relay_timestamp; 0: it is not looked at while it is written */
	bool is_past;
};

/* 0, -EINVAL or -ENOMEM, when nothing is kept. */
int relay_traced_init(struct relay_traced *traced, const struct relay_merge_process *process);
void relay_traced_free(struct relay_traced *traced);

/* Add the name of a thread: 0 or -ENOMEM. Get it: "": it is not known. */
int relay_traced_name_thread(struct relay_traced *traced, uint32_t pid, uint32_t tid, const char *name);
const char *relay_traced_thread_name(const struct relay_traced *traced, uint32_t pid, uint32_t tid);

uint64_t relay_traced_time(const struct relay_traced *traced, uint64_t ticks);

struct relay_stream;

/* An event; or, with `lost`, that so many were lost between `since` and the time. Valid until the stream's next one. */
struct relay_event {
	uint64_t time;
	const struct relay_stream *stream;
	const struct relay_trace_event *declared;
	const unsigned char *context, *fields, *end;
	uint64_t lost, since;
	bool is_late;     /* the merge had given out a later one */
	bool has_structs; /* of its fields, some are in structs */
};

enum relay_stream_state { RELAY_STREAM_EVENT, RELAY_STREAM_EMPTY, RELAY_STREAM_ENDED };

struct relay_stream {
	const struct relay_traced *traced;
	uint32_t cpu, number;
	struct relay_source *source;
	struct relay_event_cursor cursor;
	struct relay_event event; /* the next one, or, while it is empty, the watermark as its time */
	enum relay_stream_state state;
	bool has_packets;                /* there was one */
	uint64_t discarded, last_end;    /* as the last packet said */
	uint64_t since, until, round;    /* `round`: in which the merge asked it last */
	struct relay_merge_stats *stats; /* of the merge; events are counted there */
};

/* Go on to the next event; or look again, if the stream is empty. */
void relay_stream_advance(struct relay_stream *stream);

/* Whose an event is: the process, and 0 or the thread. */
uint32_t relay_event_pid(const struct relay_event *event);
uint32_t relay_event_tid(const struct relay_event *event);

/* The word for its level; NULL: it has none. */
const char *relay_event_level(const struct relay_event *event);

/* --- fields --- */

/* The fields of an event, one after the other. */
struct relay_fields {
	const struct relay_trace_event *declared;
	const struct relay_trace_field *field, *last;
	const unsigned char *at, *end;
	const char *before; /* the name of the last one; "": there was none */
	uint32_t depth;     /* in how many structs it is */
	bool has_structs;   /* names may have dots */
};

struct relay_value {
	const char *name;                    /* also of the structs that it is in, with a dot behind each */
	const char *own_name;                /* the same without these */
	const char *begun;                   /* names of structs that begin with it, up to own_name */
	uint32_t n_ended;                    /* structs that have ended before it, and before these begin */
	const struct relay_field_type *type; /* of an array or a sequence: of each of its numbers */
	const char *label;                   /* of an enum; NULL: its value has none */
	bool is_array;                       /* also: a sequence */
	/* By its kind: u; i; d, also of float; `length` bytes of a string without its null byte, or of bytes; if is_array,
	 * `length` numbers, for relay_array_at(). */
	uint64_t u;
	int64_t i;
	double d;
	const unsigned char *data;
	size_t length;
};

struct relay_fields relay_event_fields(const struct relay_event *event);

/* One of the numbers of an array. */
struct relay_value relay_array_at(const struct relay_value *array, size_t i);

/* The next one of the structs that begin with a value: return its name, and its length in *length. NULL: there is none left. `at`:
 * value->begun, and then kept by this function. */
static inline const char *relay_struct_next(const struct relay_value *value, const char **at, size_t *length)
{
	const char *name = *at;
	if (name == value->own_name)
		return NULL;
	*length = strcspn(name, ".");
	*at = name + *length + 1;
	return name;
}

/* false: there is none left; fields->depth structs end then. */
bool relay_fields_next(struct relay_fields *fields, struct relay_value *value);

#endif
