/* SPDX-License-Identifier: MIT */
/*
 * <relayfs/merge.h>: the events of a trace, which lie in a stream for each process and CPU, as one stream in the order of their
 * times; for tools, symbols as in <relayfs/store.h>.
 *
 *     merge = relay_merge_new(since, until)
 *     n = relay_merge_add_process(merge, &process)                once a process
 *     relay_merge_add_files(merge, n, cpu, paths, n_paths)        once a CPU
 *     exporter = relay_export_new(merge, &options)
 *     while (relay_export_next(exporter, &data) > 0) ...         what is written of it
 *
 * Events can be read while they are written: relay_merge_add_buffer() in place of relay_merge_add_files(), and
 *
 *     looked = relay_merge_look(merge, false)                     again and again
 *     relay_merge_limit(merge, looked - delay)
 *
 * before what has come since is written.
 *
 * Functions return 0 (or what they say) or a negative errno, and do not trust what the streams hold. Times are ns since 1970.
 */
#ifndef RELAYFS_MERGE_H
#define RELAYFS_MERGE_H

#include <relayfs/trace_store.h>
#include <stdbool.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct relay_merge;

/* Events before `since` and after `until` are left out, and so is what was lost before or after. NULL: no memory. */
struct relay_merge *relay_merge_new(uint64_t since, uint64_t until);
void relay_merge_free(struct relay_merge *merge);

/* A process of a trace, or several that share buffers. */
struct relay_merge_process {
	const char *name; /* of the program; copied */
	uint32_t pid;     /* 0: each event's context says it */
	uint32_t
	    identity; /* the same number for all that is added of one process, as of a recording in several parts */
	/* Where in each event's context these are, uint32_t; -1: nowhere. */
	int32_t vpid_at, vtid_at;
	/* The clock of its events: `freq` ticks a second, and offset_s seconds and `offset` ticks from 1970 to its zero. */
	uint64_t freq, offset_s, offset;
	/* For relay_merge_add_buffer(): which it is, of enum relay_timestamp; and whether it was that of an earlier boot. */
	uint32_t clock, is_past;
	/* Its events; those without names (relay_layouts_add) are left out. relay_merge_add_process() takes them over, also if it fails. */
	struct relay_layouts *layouts;
};

/* The process's number, for relay_merge_add_files(), from 0; -ENOMEM; -EINVAL: its clock or its context cannot be. */
int relay_merge_add_process(struct relay_merge *merge, const struct relay_merge_process *process);

/*
 * Add the stream of a CPU.
 *
 * paths  the files in which it goes on, each as `relayctl record` and `relayctl snapshot` write them. A recorder may still write
 *        to the last one: what that holds when it is looked at is merged. They are mapped:
 *        after relay_guard_install() one that is truncated meanwhile ends there.
 *
 * 0; -ENOMEM; -EINVAL: there is no such process.
 */
int relay_merge_add_files(struct relay_merge *merge, int process, uint32_t cpu, const char *const *paths,
                          size_t n_paths);

/*
 * Add a buffer that may be written to. Nothing is consumed, unless relay_merge_look() is told to.
 *
 * buf     stays the caller's, and mapped until the process is removed, or the merge freed
 * is_new  nobody could look at it before: what it had lost by then is told, too
 *
 * 0; -ENOMEM; -EINVAL: there is no such process, it has no clock, these are no buffers of a trace, or the merge is exported in a format
 * of tracks.
 */
int relay_merge_add_buffer(struct relay_merge *merge, int process, uint32_t cpu, struct rchan_buf *buf, bool is_new);

/*
 * Look once at each buffer of which all has been given out that was seen in it. What is found is given out after this, so that there is
 * time to read what the programs had declared before.
 *
 * consumes  consume what was given out, as far as programs need the room
 *
 * Returns the time just before; UINT64_MAX: no process was added that may still write, or all were removed.
 */
uint64_t relay_merge_look(struct relay_merge *merge, bool consumes);

/* Give out nothing that is later. An event that is older can still come if its thread has been stopped between looking at the clock and
 * writing, or its process was added late. So the limit is to be some time ago. */
void relay_merge_limit(struct relay_merge *merge, uint64_t time);

/* True if a look would find events now; or such as may not be later than the limit. */
bool relay_merge_is_behind(const struct relay_merge *merge);
bool relay_merge_is_behind_limit(const struct relay_merge *merge);

/* The time up to which all was given out, and nothing more comes but what is late, of processes that are added later too. To be asked when
 * the merge has given out all that it can for now. */
uint64_t relay_merge_reached(const struct relay_merge *merge);

/* The process's events, to add those that it has declared since; valid until the next call about this merge. NULL: there is no such
 * process. */
struct relay_layouts *relay_merge_layouts(struct relay_merge *merge, int process);

/* Nothing will be written to the process's buffers any more: they end when all is given out. */
void relay_merge_finish(struct relay_merge *merge, int process);

struct relay_merge_process_stats {
	uint32_t n_open; /* streams that have not ended */
	uint32_t cpu;    /* of the stream that `error` is about */
	uint64_t
	    n_damaged; /* pieces of buffers with bytes that are no events; what follows in the sub-buffer counts as lost */
	int32_t error; /* -EBADMSG: a buffer is damaged, and its stream has ended there; 0 */
	uint32_t unused;
};

/* 0; -EINVAL: there is no such process. */
int relay_merge_process_stats(const struct relay_merge *merge, int process, struct relay_merge_process_stats *stats);

/* Forget a process and its streams; its number may be given to another one. 0; -EINVAL: there is no such process. */
int relay_merge_remove(struct relay_merge *merge, int process);

struct relay_merge_stats {
	uint64_t events;  /* that were given out */
	uint64_t lost;    /* that streams say are lost */
	uint64_t late;    /* of the events, those older than one before them */
	uint64_t damaged; /* packets with bytes that are no events: what comes before these was given out */
	uint64_t time;    /* of the last event that was given out */
	int32_t error;    /* the first with which a file could not be read, negative; 0: none */
	uint32_t unused;
};
void relay_merge_stats(const struct relay_merge *merge, struct relay_merge_stats *stats);

struct relay_export;

enum relay_export_format {
	RELAY_EXPORT_TEXT = 0,
	RELAY_EXPORT_JSON = 1,    /* an object a line */
	RELAY_EXPORT_CHROME = 2,  /* Chrome's trace events */
	RELAY_EXPORT_PERFETTO = 3 /* protobuf */
};

/* How text tells times: of the day, with the date (both local), since the first event, or since 1970. */
enum relay_export_times {
	RELAY_EXPORT_CLOCK = 0,
	RELAY_EXPORT_DATE = 1,
	RELAY_EXPORT_RELATIVE = 2,
	RELAY_EXPORT_SECONDS = 3
};

struct relay_export_options {
	uint32_t format;     /* enum relay_export_format */
	uint32_t times;      /* enum relay_export_times */
	uint8_t has_colours; /* text: for a terminal */
	uint8_t is_brief;    /* text: lines as short as can be */
	uint8_t marks_late;  /* text and JSON: events that are older than one before them are marked */
	uint8_t unused[5];
	/* CLOCK_REALTIME less CLOCK_MONOTONIC, ns, for formats of which the times are of the latter: Chrome's and Perfetto's. */
	uint64_t mono_offset;
};

/* Write what a merge, which stays the caller's, gives out. NULL and errno: EINVAL there is no such format, or it is Chrome's or
 * Perfetto's, and the merge has buffers that are written to; ENOMEM. */
struct relay_export *relay_export_new(struct relay_merge *merge, const struct relay_export_options *options);
void relay_export_free(struct relay_export *exporter);

/* The next piece of what is to be written: its bytes, valid until the next call; 0: the merge has nothing, now or any more;
 * -ENOMEM: something is missing in it. */
ssize_t relay_export_next(struct relay_export *exporter, const char **data);

/* --- packets --- */

struct relay_packets;

/* What a stream gave out, and lost before that, in the form in which a buffer has it; times in ticks of the process's clock. */
struct relay_merge_packet {
	uint32_t identity; /* of struct relay_merge_process */
	uint32_t cpu;
	uint64_t begin, end;
	uint64_t lost;
	uint64_t n_events;
	const char *events; /* they follow a packet's head */
	size_t length;
};

/* Make packets of what a merge gives out, which stays the caller's, and is not exported. NULL: no memory. */
struct relay_packets *relay_packets_new(struct relay_merge *merge);
void relay_packets_free(struct relay_packets *packets);

/*
 * Make packets of what the merge gives out now; the last ones are forgotten. Each stream's are in their order, and so are their times.
 *
 * floor  events that are older get this time, so that what others have been told up to it stays true
 *
 * 1; 0: there is more, for the next call; -ENOMEM, then and ever after.
 */
int relay_packets_gather(struct relay_packets *packets, uint64_t floor);

/* The next one, valid until they are gathered again. 1; 0: there is none left. */
int relay_packets_next(struct relay_packets *packets, struct relay_merge_packet *packet);

#ifdef __cplusplus
}
#endif
#endif
