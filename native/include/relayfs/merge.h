/* SPDX-License-Identifier: MIT */
/*
 * <relayfs/merge.h>: merge the streams of a trace, one for each process and CPU, into one stream in the order of the
 * events' times. For tools; symbols as in <relayfs/store.h>.
 *
 *     merge = relay_merge_new(since, until)
 *     n = relay_merge_add_process(merge, &process)                for each process
 *     relay_merge_add_files(merge, n, cpu, paths, n_paths)        for each of its CPUs
 *     exporter = relay_export_new(merge, &options)
 *     while ((length = relay_export_next(exporter, &data)) > 0)
 *             write(1, data, length)
 *
 * To read events while programs write them, call relay_merge_add_buffer() instead of relay_merge_add_files(), and
 * repeatedly, before the loop over relay_export_next():
 *
 *     looked = relay_merge_look(merge, false)
 *     relay_merge_limit(merge, looked - delay)
 *
 * Functions return 0 (or as described) or a negative errno, and do not trust the contents of streams. Times are ns
 * since 1970, unless they are in ticks. One thread at a time may use a merge.
 */
#ifndef RELAYFS_MERGE_H
#define RELAYFS_MERGE_H

#include <relayfs/ring.h>
#include <relayfs/trace_store.h>
#include <stdbool.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct relay_merge;

/* Make a merge without streams. It leaves out events, and counts of lost events, whose times are before `since` or
 * after `until`. NULL: no memory. */
struct relay_merge *relay_merge_new(uint64_t since, uint64_t until);
void relay_merge_free(struct relay_merge *merge);

/* Leave out events that do not meet the first one of these conditions, which are copied. Lost events are counted all the
 * same. 0; -ENOMEM; -EINVAL: there is no condition, or it is damaged, or the merge has a condition or a process already. */
int relay_merge_set_condition(struct relay_merge *merge, const struct relay_conditions *conditions);

/* A machine, if the merge has processes of several: formats show its name. */
struct relay_merge_host {
	const char *name; /* copied; may have any bytes but 0 */
	/* How far its clock was off at most, and as its kernel has estimated, ns; UINT64_MAX: it is not known. */
	uint64_t max_error, est_error;
};

/* Add a machine, before the first event is output. Return its number, from 1, for struct relay_merge_process; or -ENOMEM. */
int relay_merge_add_host(struct relay_merge *merge, const struct relay_merge_host *host);

/* A process of a trace, or several that share buffers. */
struct relay_merge_process {
	const char *name; /* of the program; copied */
	uint32_t pid;     /* 0: it is in each event's context, at vpid_at */
	/* A number of the caller's. If a process is added in several parts, for example of a recording, all have the
	 * same one. */
	uint32_t identity;
	/* Offsets of these uint32_t in each event's context, bytes; -1: the context does not have it. */
	int32_t vpid_at, vtid_at;
	/* The clock of its events: `freq` ticks a second, and offset_s seconds and `offset` ticks from 1970 to its
	 * zero. */
	uint64_t freq, offset_s, offset;
	/* For relay_merge_add_buffer(). clock: enum relay_timestamp; 0: none. is_past: 1 if the buffers were written in
	 * an earlier boot, so that nothing more is written to them and the clock cannot be read. */
	uint32_t clock, is_past;
	/* Also for that: how many bytes of memory an event may take; longer ones count as lost. A power of two; 0: 16 MiB. */
	uint32_t longest;
	uint32_t host; /* the number of its machine; 0: there is only one */
	/* Its declared events; those without names (relay_layouts_add) are left out. relay_merge_add_process() becomes
	 * the owner, also if it fails, and frees them. */
	struct relay_layouts *layouts;
};

/* Return the process's number, for relay_merge_add_files(), from 0; -ENOMEM; -EINVAL: freq is 0, vpid_at or vtid_at is
 * outside the context, or there is no such host. */
int relay_merge_add_process(struct relay_merge *merge, const struct relay_merge_process *process);

/* What the time `time` of a process's clock is for all machines. Between two knots mapped times go evenly, and before the
 * first and behind the last one as fast as those of the process. error: how far such times, from this knot to the next one,
 * may be off, ns; UINT64_MAX: it is not known. */
struct relay_time_knot {
	uint64_t time, mapped, error;
};

/*
 * Map the times of a process, whose streams are added later and are no buffers. A second call maps the times of what is
 * read from then on in another way.
 *
 * knots        n of them, of which each is later than the one before, and not mapped to an earlier time; copied
 * first, last  leave out events before and after these times of the process's clock. A clock that was set back is shown by
 *              a process for the time before, and another one, with the same streams, for the time after that
 *
 * 0; -ENOMEM; -EINVAL: there is no such process, or the knots are in no such order.
 */
int relay_merge_map_clock(struct relay_merge *merge, int process, const struct relay_time_knot *knots, uint32_t n,
                          uint64_t first, uint64_t last);

/* Name a thread, for RELAY_EXPORT_CHROME and _PERFETTO: the one whose events have this `tid`, and, if they have a number
 * of their process, this `pid`; otherwise `pid` is the process's. Call it before the first event is output, and at most
 * once for each thread. name: copied; it may contain any bytes. 0; -ENOMEM; -EINVAL: there is no such process. */
int relay_merge_name_thread(struct relay_merge *merge, int process, uint32_t pid, uint32_t tid, const char *name);

/*
 * Add the stream of a CPU.
 *
 * paths  the stream's files, in order, as `relayctl record` and `relayctl snapshot` write them. A recorder may still be
 *        writing to the last one, which is read up to its length when the merge opens it. Files are mapped; if one is
 *        truncated meanwhile, it ends there after relay_guard_install(), otherwise SIGBUS is raised.
 *
 * 0; -ENOMEM; -EINVAL: there is no such process.
 */
int relay_merge_add_files(struct relay_merge *merge, int process, uint32_t cpu, const char *const *paths,
                          size_t n_paths);

/*
 * The same, of files to which a recorder or receiver appends: the stream ends after relay_merge_finish() only. Another
 * call for the same CPU adds paths behind those that the stream has. A file that does not exist is waited for until
 * relay_merge_move_file() is called for it. An event that is not declared waits for relay_merge_layouts() or some calls
 * of relay_merge_look_at_files(). Returns as relay_merge_add_files(); -EINVAL also if the stream is none of this
 * function's.
 */
int relay_merge_follow_files(struct relay_merge *merge, int process, uint32_t cpu, const char *const *paths,
                             size_t n_paths);

/* Return whether a file that is followed may have events that were not read yet. path: as the merge has it */
bool relay_merge_needs_file(const struct relay_merge *merge, int process, uint32_t cpu, const char *path);

/* Read the rest of such a file from `to`, which has the same bytes: the file was renamed, or compressed, and `to` is a
 * copy. NULL: it was removed, so leave it out. 0; -ENOMEM; -EINVAL: relay_merge_needs_file() is false. */
int relay_merge_move_file(struct relay_merge *merge, int process, uint32_t cpu, const char *path, const char *to);

/* Return the path of the file of a CPU that was read as far as it goes, and lacks the last packets before those of the
 * next file, which is there and waits for them. NULL: there is none. The path is valid until the next function is called. */
const char *relay_merge_unfinished(const struct relay_merge *merge, int process, uint32_t cpu);

/* Look what was appended to those files, so that it can be output. Return the end of the latest packet there, less what
 * relay_merge_set_ahead() says of its process; 0: there is none. The streams of files that are read up to their ends do
 * not keep others back; what comes late is output at once. So call relay_merge_limit() with a time that this function
 * has returned some time before. */
uint64_t relay_merge_look_at_files(struct relay_merge *merge);

/* The end of the latest packet of a process that relay_merge_look_at_files() has seen; 0: it has seen none, or there is
 * no such process. */
uint64_t relay_merge_latest(const struct relay_merge *merge, int process);

/* The clock of a process is `ahead` ns ahead of the others': its events are put into the order, and compared with the
 * limit, as if their times were so much earlier. They are output with the times that they have. 0; -EINVAL: there is no
 * such process. */
int relay_merge_set_ahead(struct relay_merge *merge, int process, uint64_t ahead);

/* Why events were lost. */
enum relay_loss_cause {
	RELAY_LOSS_UNKNOWN = 0,
	RELAY_LOSS_FULL = 1,        /* the buffer was full, or had no memory */
	RELAY_LOSS_TOO_LARGE = 2,   /* longer than a sub-buffer */
	RELAY_LOSS_DISABLED = 3,    /* the buffer was disabled */
	RELAY_LOSS_OVERWRITTEN = 4, /* before they were read */
	RELAY_LOSS_TORN = 5,        /* their producer never completed them */
	RELAY_LOSS_NO_BUFFERS = 6,  /* their program could get no buffers */
	RELAY_LOSS_DAMAGED = 7,     /* they were no valid events */
	RELAY_LOSS_REMOVED = 8,     /* their buffer was removed before they were read */
	RELAY_N_LOSS_CAUSES
};

/* Return the word for a cause, as in .channels/PATH/losses. NULL: it is RELAY_LOSS_UNKNOWN, or none of these. */
const char *relay_loss_cause_name(uint32_t cause);

/* So many events were lost for one cause between two times, ns since 1970. */
struct relay_loss {
	uint64_t since, until;
	uint64_t records;
	uint32_t cause; /* enum relay_loss_cause */
	uint32_t cpu;
};

enum { RELAY_NO_CPU = 0x7ffffffe }; /* the cpu of a stream without buffers */

/* Tell why events of a process were lost, for relay_merge_add_files(): losses that packets count are given out with the
 * causes of intervals that overlap them. Packets say how many were lost, also if the intervals do not. Call it before the first
 * event is output. 0; -ENOMEM; -EINVAL: there is no such process or cause. */
int relay_merge_explain(struct relay_merge *merge, int process, const struct relay_loss *losses, size_t n);

/* Add a stream of losses that no packet counts, in the order of `until`. The process's clock must be ns since 1970. 0; -ENOMEM;
 * -EINVAL: there is no such process or cause, or the order is wrong. */
int relay_merge_add_lost(struct relay_merge *merge, int process, const struct relay_loss *losses, size_t n);

/*
 * Add the stream of a CPU as a buffer to which programs may be writing: of a trace, or of a channel with `times`, whose
 * records are events of id 0 with a field of the type bytes. Its data is consumed only by
 * relay_merge_look() with `consumes`.
 *
 * buf     stays the caller's, who must keep it mapped until the process is removed or the merge is freed
 * is_new  also count events that were lost before this call, because no reader has counted them yet
 *
 * 0; -ENOMEM; -EINVAL: there is no such process, its `clock` is 0, `buf` has neither packets nor `times`, or the merge is
 * exported as RELAY_EXPORT_CHROME or RELAY_EXPORT_PERFETTO.
 */
int relay_merge_add_buffer(struct relay_merge *merge, int process, uint32_t cpu, struct rchan_buf *buf, bool is_new);

/* Add the stream of a CPU as a ring with `times`, to which programs may be writing. Nothing is consumed. ring: the caller
 * keeps it mapped until the process is removed or the merge is freed. Returns as relay_merge_add_buffer(), except that the
 * ring needs `times`; -EBADMSG: the ring is damaged. */
int relay_merge_add_ring(struct relay_merge *merge, int process, uint32_t cpu, struct relay_ring *ring);

/*
 * Copy the next piece of each buffer, unless too many bytes of earlier pieces wait to be output. The caller can then
 * add events that programs have declared (relay_merge_layouts()), before the merge uses the declarations to output the
 * pieces.
 *
 * consumes  also consume the sub-buffers that were copied, from buffers of which half or more is unconsumed
 *
 * Returns the time just before; UINT64_MAX: there is no process that may still write to its buffers.
 */
uint64_t relay_merge_look(struct relay_merge *merge, bool consumes);

/* Do not output events later than `time`. At first there is no limit. A thread may be preempted between reading the
 * clock and writing its event, and a process may be added late; so choose a time some way in the past, to get such
 * events in order. */
void relay_merge_limit(struct relay_merge *merge, uint64_t time);

/* True if another relay_merge_look() would copy more of a buffer; or more of a buffer whose next event may be no later
 * than the limit. */
bool relay_merge_is_behind(const struct relay_merge *merge);
bool relay_merge_is_behind_limit(const struct relay_merge *merge);

/* Return the time up to which all events were output, except late ones and those of processes that are added later.
 * Valid only directly after relay_export_next() has returned 0 or relay_packets_gather() 1. */
uint64_t relay_merge_reached(const struct relay_merge *merge);

/* Leave out the first `n` events of the time `time`, as another merge has output them: `time` and `n_at_time` of its
 * relay_merge_stats(), with which those of this merge begin then. If they are later than relay_merge_reached(), all that it has
 * output after that is of this time: its last event, while a program was writing the next one, or there was more to read. Events
 * of different CPUs are counted in the order in which their buffers were added. To be called before the first event is
 * output. */
void relay_merge_skip(struct relay_merge *merge, uint64_t time, uint64_t n);

/* Return the process's declared events, to which the caller may add; valid until the next call with this merge. NULL:
 * there is no such process. */
struct relay_layouts *relay_merge_layouts(struct relay_merge *merge, int process);

/* Programs will write no more to the process's buffers: each stream ends when all its events were output. */
void relay_merge_finish(struct relay_merge *merge, int process);

struct relay_merge_process_stats {
	uint32_t n_open; /* streams that have not ended */
	uint32_t cpu;    /* of the stream that `error` is about */
	/* Pieces of buffers with bytes that are no valid events, whose sub-buffer's rest is skipped and counts as lost;
	 * and records whose time lay in the future. */
	uint64_t n_damaged;
	int32_t error; /* a negative errno, such as -EBADMSG of a damaged buffer: a stream has ended there; 0 */
	uint32_t unused;
};

/* 0; -EINVAL: there is no such process. */
int relay_merge_process_stats(const struct relay_merge *merge, int process, struct relay_merge_process_stats *stats);

/* Forget a process and its streams; its number may be given to another one. 0; -EINVAL: there is no such process. */
int relay_merge_remove(struct relay_merge *merge, int process);

struct relay_merge_stats {
	uint64_t events;  /* output so far */
	uint64_t lost;    /* events that programs lost */
	uint64_t late;    /* of `events`, those older than one that was output before them */
	uint64_t damaged; /* packets with bytes that are no valid events; the events before these bytes were output */
	uint64_t time;    /* the latest of an event or loss that was output, as relay_merge_set_ahead() orders them */
	int32_t error;    /* the first negative errno with which a stream ended early; 0: none */
	uint32_t unused;
	uint64_t n_at_time; /* of `events`, those of the time `time` */
};
void relay_merge_stats(const struct relay_merge *merge, struct relay_merge_stats *stats);

struct relay_export;

enum relay_export_format {
	RELAY_EXPORT_TEXT = 0,
	RELAY_EXPORT_JSON = 1,         /* an object a line */
	RELAY_EXPORT_CHROME = 2,       /* Chrome's trace events */
	RELAY_EXPORT_PERFETTO = 3,     /* protobuf */
	RELAY_EXPORT_RECORDS = 4,      /* of channels with `times`: the records, as lines */
	RELAY_EXPORT_RECORDS_JSON = 5, /* an object a line */
	RELAY_EXPORT_RECORDS_TEXT = 6, /* a line each, with time and CPU */
	RELAY_EXPORT_PCAPNG = 7,       /* as programs have written them, in pcapng */
	RELAY_EXPORT_RECORDS_PCAPNG = 8
};

/* How RELAY_EXPORT_TEXT and _RECORDS_TEXT show times: local time of day; local date and time; seconds since the first
 * line; seconds since 1970. */
enum relay_export_times {
	RELAY_EXPORT_CLOCK = 0,
	RELAY_EXPORT_DATE = 1,
	RELAY_EXPORT_RELATIVE = 2,
	RELAY_EXPORT_SECONDS = 3
};

struct relay_export_options {
	uint32_t format;      /* enum relay_export_format */
	uint32_t times;       /* enum relay_export_times */
	uint8_t has_colours;  /* text: with a terminal's escape sequences for colours */
	uint8_t is_brief;     /* text: times in us, and no brackets */
	uint8_t marks_late;   /* text, JSON, pcapng: mark events that are older than one output before them */
	uint8_t shows_errors; /* text, JSON: with how far the time of each line may be off */
	uint8_t unused[4];
	/* CLOCK_REALTIME less CLOCK_MONOTONIC, ns, for RELAY_EXPORT_CHROME and _PERFETTO, whose times are
	 * CLOCK_MONOTONIC. With several machines, _PERFETTO has CLOCK_REALTIME, and _CHROME times since this one. */
	uint64_t mono_offset;
};

/* Make an exporter of a merge, which stays the caller's and must live as long. NULL and errno: EINVAL there is no such
 * format, or it is RELAY_EXPORT_CHROME or _PERFETTO, and the merge has buffers (relay_merge_add_buffer()); ENOMEM. */
struct relay_export *relay_export_new(struct relay_merge *merge, const struct relay_export_options *options);
void relay_export_free(struct relay_export *exporter);

/* Return the number of bytes of the next piece of the output, which *data points to until the next call; 0: the merge
 * has no event to output, now or ever; -ENOMEM: a part of the output is missing. */
ssize_t relay_export_next(struct relay_export *exporter, const char **data);

/* --- packets --- */

struct relay_packets;

/* Events of one stream, in the format of a buffer's packets. */
struct relay_merge_packet {
	uint32_t identity; /* of struct relay_merge_process */
	uint32_t cpu;
	/* The earliest and latest time of events and losses, ticks of the process's clock; if that is mapped, ns since 1970. */
	uint64_t begin, end;
	uint64_t lost; /* events that were lost before these */
	uint64_t n_events;
	const char *events; /* `length` bytes, as behind the header of a packet (struct relay_packet) */
	size_t length;
};

/* Make packets of the events of a merge, which stays the caller's, must live as long, and must not have an exporter.
 * NULL: no memory. */
struct relay_packets *relay_packets_new(struct relay_merge *merge);
void relay_packets_free(struct relay_packets *packets);

/*
 * Make packets of the events that the merge can output now, and free the previous packets. Times never decrease within
 * the packets of a stream.
 *
 * floor  events that are older get this time (ns since 1970), because viewers were told that no older ones will come
 *
 * 1; 0: there are more events, for the next call; -ENOMEM, also from all later calls.
 */
int relay_packets_gather(struct relay_packets *packets, uint64_t floor);

/* Get the next packet, valid until the next relay_packets_gather(). 1; 0: there are no more. */
int relay_packets_next(struct relay_packets *packets, struct relay_merge_packet *packet);

/* --- counts --- */

struct relay_counts;

/* How many events of an id a process has written. */
struct relay_merge_count {
	uint32_t identity; /* of struct relay_merge_process */
	uint32_t id;
	uint64_t n;
};

/* Count the events of a merge, which stays the caller's, must live as long, and must not have an exporter or packets.
 * NULL: no memory. */
struct relay_counts *relay_counts_new(struct relay_merge *merge);
void relay_counts_free(struct relay_counts *counts);

/* Count the events that the merge can output now, in addition to those of earlier calls. 0; -ENOMEM: some were not
 * counted yet, as if they could not be output yet. */
int relay_counts_gather(struct relay_counts *counts);

/* Get the next count, in no particular order. Do not call relay_counts_gather() before it returns 0. 1; 0: there are no
 * more, and the next call begins anew. */
int relay_counts_next(struct relay_counts *counts, struct relay_merge_count *count);

/* --- triggers --- */

struct relay_triggers;

/* The most triggers of a merge. */
enum { RELAY_TRIGGERS_MAX = 32 };

/* What a trigger fires at. */
enum relay_trigger_kind {
	RELAY_TRIGGER_EVENT = 0, /* an event of these names that meets the condition */
	RELAY_TRIGGER_RATE = 1,  /* the first one of these after `most` in a second of the clock */
	RELAY_TRIGGER_QUIET = 2, /* the end of the time `quiet` without one of these */
	RELAY_TRIGGER_LOST = 3,  /* a loss */
	RELAY_TRIGGER_OTHER = 4  /* only relay_triggers_fire() */
};

/* Where a trigger stands. Who makes new triggers passes those of the triggers before. Initially all are 0, except `last`. */
struct relay_trigger_state {
	uint64_t matched; /* events that have met the condition */
	uint64_t fired;   /* how often it has fired */
	uint64_t limited; /* how often `limit` has kept it from firing since it has fired last */
	uint64_t due;     /* it does not fire at an earlier time */
	uint64_t last;    /* the time of the last event that has met the condition; initially the trigger's `since` */
	uint64_t second;  /* of RELAY_TRIGGER_RATE: since 1970, and how many events it has had so far */
	uint64_t in_second;
	uint64_t is_told; /* of RELAY_TRIGGER_QUIET: whether it has fired since the last event */
};

struct relay_trigger {
	uint32_t kind;         /* enum relay_trigger_kind */
	uint32_t is_only_told; /* 1: relay_triggers_next() leaves out its firings; they have lines, as all have */
	const char *name;      /* for these lines; copied; NULL: they have none */
	const char *glob;      /* of the events, PROVIDER:NAME, for fnmatch(3); copied; of _LOST and _OTHER NULL */
	const struct relay_conditions *conditions; /* of which events meet the first one; copied; NULL: all do */
	uint64_t since;                            /* what is earlier does not count */
	uint64_t most;                             /* of RELAY_TRIGGER_RATE */
	uint64_t quiet;                            /* of RELAY_TRIGGER_QUIET, ns */
	uint64_t limit;                            /* the least time between two firings, ns */
	struct relay_trigger_state state;
};

struct relay_firing {
	uint32_t trigger; /* its index */
	uint32_t unused;
	uint64_t number; /* counts the firings of this trigger from 1 on */
	uint64_t time;
};

/* Make triggers for the events of a merge, which stays the caller's, must live as long, and must not have an exporter,
 * packets or counts. Other triggers of the merge may be freed before or after that, and not be used any more. NULL and
 * errno: ENOMEM; EINVAL: n is more than RELAY_TRIGGERS_MAX, or a kind or condition is wrong. */
struct relay_triggers *relay_triggers_new(struct relay_merge *merge, const struct relay_trigger *triggers, uint32_t n);
void relay_triggers_free(struct relay_triggers *triggers);

/* Forget the firings so far, and evaluate the triggers for the events that the merge can output now. 1; 0: there are more
 * events, for the next call; -ENOMEM: some event was not evaluated, or a text is missing. */
int relay_triggers_gather(struct relay_triggers *triggers);

/* Tell triggers of the kind RELAY_TRIGGER_QUIET up to which time all events were evaluated: relay_merge_reached(). */
void relay_triggers_reach(struct relay_triggers *triggers, uint64_t time);

/* Fire a trigger. text: why; copied. 1; 0: its limit forbids that, or the time is before its `since`; -EAGAIN: too many
 * firings wait for relay_triggers_forget(); -EINVAL: there is no such trigger. */
int relay_triggers_fire(struct relay_triggers *triggers, uint32_t trigger, uint64_t time, const char *text);

/* Get the next firing that is not forgotten. 1; 0: there are no more. */
int relay_triggers_next(struct relay_triggers *triggers, struct relay_firing *firing);

/*
 * Return a line for each firing that is not forgotten, until the next call of another function; *length receives the length
 * of them all. A line has the time of the firing, the trigger's name, the number of the firing, the event, loss or text, perhaps
 * cut, and how often the limit has kept the trigger from firing before:
 *
 *     [2026-11-28 12:34:56.123456789] slow 2: app-42/43 cpu0 server:request: { ms = 7 } (3 more since firing 1)
 *     [2026-11-28 12:34:56.123456789] lull 1: no event for 30s
 */
const char *relay_triggers_lines(const struct relay_triggers *triggers, size_t *length);

/* Forget the firings so far. */
void relay_triggers_forget(struct relay_triggers *triggers);

/* 0; -EINVAL: there is no such trigger. */
int relay_triggers_state(const struct relay_triggers *triggers, uint32_t trigger, struct relay_trigger_state *state);

#ifdef __cplusplus
}
#endif
#endif
