/* SPDX-License-Identifier: MIT */
/*
 * <relayfs/trace_store.h>: traces, for file servers, recorders and other tools; symbols as in <relayfs/store.h>.
 * Programs with tracepoints need <relayfs/trace.h> alone.
 *
 *     STORE/.traces                     the control file: one page for programs, two for each trace
 *     STORE/.traces-lost                counts of events that programs lost because they got no buffers
 *     STORE/.traces-lost-UID            the same for programs of another user than the store's
 *     STORE/NAME/                       a trace
 *     STORE/NAME/PROCESS-PID/           one process's part of it; it appears as a whole, by rename(2)
 *     STORE/NAME/PROCESS-PID/.events    one line about the process, then its events' declarations in TSDL; locked
 *                                       (fcntl(2), F_RDLCK) as long as a process writes here
 *     STORE/NAME/PROCESS-PID/cpu/mem0   its buffers: a channel whose sub-buffers are read as CTF packets
 *     STORE/NAME/PROCESS-PID/.state     the last values of its events of RELAY_TRACE_STATE(), if it has any
 *     STORE/NAME/PROCESS-PID/.objects   the program and libraries that it has loaded: a line each (trace/loaded.h)
 *
 *     STORE/.early/NAME/PROCESS-PID/    the same, before trace NAME exists
 *
 * With buffers=peruser PROCESS-PID is user-UID, with buffers=shared it is `shared`.
 *
 * Functions return 0 (or as described) or a negative errno, and do not trust the memory of the store.
 */
#ifndef RELAYFS_TRACE_STORE_H
#define RELAYFS_TRACE_STORE_H

#include <relayfs/layout.h>
#include <relayfs/store.h>
#include <relayfs/trace_event.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
	RELAY_N_TRACES = 16,          /* at once, at most */
	RELAY_TRACE_NAME_BYTES = 128, /* of a trace's name and of a directory's name in it, including the null byte */
	RELAY_TRACE_FILTER_BYTES = 512,
	RELAY_TRACE_RULES_BYTES = 2048,
	RELAY_TRACE_BOOT_BYTES = 40
};

/*
 * The header of an event in a packet, little-endian, without padding; then its context: the pid, if several processes write,
 * and the thread id, both of 4 bytes and in the program's own PID namespace; then the fields.
 *
 *     |id 16|time 48|                       an event whose time has the same uppermost 16 bits as the packet's timestamp_begin
 *     |65535|id 16|time 64|                 any other
 *
 * Ids are those of the declarations in the directory's .events: 0, 1, 2 ...
 */
enum { RELAY_TRACE_ID_BITS = 16, RELAY_TRACE_TIME_BITS = 48, RELAY_TRACE_ID_MAX = 65534, RELAY_TRACE_EXTENDED = 65535 };
enum {
	RELAY_TRACE_HEAD_BYTES = 8,
	RELAY_TRACE_LONG_HEAD_BYTES = 12,
	RELAY_TRACE_PID_BYTES = 4,
	RELAY_TRACE_TID_BYTES = 4
};

/*
 * The file .state: RELAY_STATES pairs of places of RELAY_STATE_BYTES each. A value is written to that place of its pair
 * which does not have the newer one, so the last value stands if its process is killed while it writes the next one. Of a
 * pair, the place with the greater sequence counts, if its sum is right.
 */
enum { RELAY_STATES = 256, RELAY_STATE_BYTES = 1024, RELAY_STATE_FIELDS_MAX = RELAY_STATE_BYTES - 40 };
enum { RELAY_STATE_MAGIC = 0x45544154 };
enum { RELAY_STATE_CPU = 0x7fffffff }; /* cpu_id of the packet in which recordings have these events */

struct relay_state_value {
	uint32_t magic;
	uint32_t sum;       /* Adler-32 of all bytes after this member, up to the end of the fields */
	uint64_t sequence;  /* greater for each value that the process writes */
	uint64_t mono_ns;   /* CLOCK_MONOTONIC, when it was set */
	uint64_t n_dropped; /* values of the process that were too long, or of more keys than there are pairs */
	uint16_t id;        /* of the declaration; RELAY_TRACE_EXTENDED: the pair has no value */
	uint16_t length;    /* of the fields */
	uint32_t tid;       /* of the thread that set it */
	unsigned char fields[RELAY_STATE_FIELDS_MAX];
};
RELAY_STATIC_ASSERT(sizeof(struct relay_state_value) == RELAY_STATE_BYTES, "programs of other versions read it");

enum { RELAY_OBJECTS_BYTES = 24576 }; /* the most that .objects has; what is loaded after that is left out */

/*
 * Conditions of rules, compiled by the server. A step compares a field of an event, or its level, with a constant. Its
 * two results, true and false, each lead to a later step, to RELAY_CONDITION_TAKE or to RELAY_CONDITION_REFUSE. So
 * evaluating a condition needs no stack, and ends after RELAY_CONDITION_STEPS steps at most.
 */
enum { RELAY_CONDITION_STEPS = 64, RELAY_CONDITION_TEXT_BYTES = 1024 };
enum { RELAY_CONDITION_TAKE = 254, RELAY_CONDITION_REFUSE = 255 };

/* What a field is compared with. */
enum relay_operand {
	RELAY_OPERAND_LEVEL = 0,    /* the event's level, not a field, with `number` */
	RELAY_OPERAND_POSITIVE = 1, /* the integer `number` */
	RELAY_OPERAND_NEGATIVE = 2, /* the same, as an int64_t */
	RELAY_OPERAND_REAL = 3,     /* a double, whose bits `number` has */
	RELAY_OPERAND_TEXT = 4,     /* a text, byte by byte; of an enum, the number that has this label */
	RELAY_OPERAND_PATTERN = 5,  /* a pattern with * and ?, which \ escapes; EQUAL: it matches */
	RELAY_N_OPERANDS
};

/* The results of comparing a field with the operand, as bits. UNORDERED: one of them is not a number. */
enum relay_order { RELAY_LESS = 1, RELAY_EQUAL = 2, RELAY_GREATER = 4, RELAY_UNORDERED = 8 };

struct relay_condition_step {
	uint8_t operand; /* enum relay_operand */
	uint8_t accepts; /* for which of enum relay_order the comparison is true */
	uint8_t next[2]; /* the step if it is false, and if it is true; RELAY_CONDITION_TAKE; RELAY_CONDITION_REFUSE */
	uint16_t field;  /* its name, an index of `texts` */
	uint16_t text;   /* the text, an index of `texts` */
	uint64_t number;
};

struct relay_conditions {
	struct relay_condition_step steps[RELAY_CONDITION_STEPS];
	uint8_t first[RELAY_CONDITION_STEPS]; /* of the conditions, in the order of the rules that have one */
	char texts[RELAY_CONDITION_TEXT_BYTES];
	uint32_t n_steps, n_conditions;
};

enum relay_trace_buffers { RELAY_TRACE_PERPROCESS = 0, RELAY_TRACE_PERUSER = 1, RELAY_TRACE_SHARED = 2 };

/* The clocks at one moment. relay_clocks_read() reads them; `clock` is the trace's, enum relay_timestamp. */
struct relay_clocks {
	uint64_t ticks;   /* by the trace's clock */
	uint64_t mono_ns; /* CLOCK_MONOTONIC */
	uint64_t real_ns; /* CLOCK_REALTIME */
};
void relay_clocks_read(uint32_t clock, struct relay_clocks *clocks);

/* A trace, as it is in the control file. */
struct relay_trace {
	uint64_t id; /* never reused in this store; 0: no trace */
	uint32_t is_started;
	uint32_t clock;   /* enum relay_timestamp */
	uint32_t buffers; /* enum relay_trace_buffers */
	uint32_t mode;    /* RELAY_NO_OVERWRITE or RELAY_OVERWRITE */
	uint64_t subbuf_size, n_subbufs;
	uint64_t memory;                   /* bytes that the buffers of all processes take at most; 0: no limit */
	struct relay_clocks made, latest;  /* at its creation; at the latest reading after that, or zeros */
	char boot[RELAY_TRACE_BOOT_BYTES]; /* /proc/sys/kernel/random/boot_id of the boot that the clocks belong to */
	char name[RELAY_TRACE_NAME_BYTES];
	/* Which processes are traced, "TERM,TERM..."; a TERM is pid:N, uid:N or a GLOB of program names. "": all. */
	char filter[RELAY_TRACE_FILTER_BYTES];
	/* Which events are traced, lines "+GLOB\n", "+GLOB CONDITION\n" or "-GLOB\n" for "provider:name". The last line whose
	 * GLOB matches decides; if none does, the event is traced unless the first line begins with +. "": all. */
	char rules[RELAY_TRACE_RULES_BYTES];
	/* How often a recorder or server flushes sub-buffers that are not full; 0: never. */
	uint64_t flush_interval_ms;
	struct relay_conditions conditions; /* of `rules` */
	uint64_t snapshot_memory;           /* bytes that its snapshots take at most; 0: as many as `memory` */
};

/* The control file of a store, mapped. */
struct relay_traces;

/* Map the control file for the server of the store, and make it if it does not exist. NULL and errno: EBADMSG it is not a
 * control file; EPROTO another version; else as open(2), mmap(2). */
struct relay_traces *relay_traces_serve(const char *store);

/* Map it read-only, for all other programs. `file`: STORE/.traces, or a mount's .traces/control. */
struct relay_traces *relay_traces_open(const char *file);
void relay_traces_close(struct relay_traces *traces);

/* Copy the trace in a slot, 0 .. RELAY_N_TRACES - 1. -ENOENT: there is none; -EBADMSG; -EAGAIN: it kept changing while
 * it was copied. */
int relay_traces_get(const struct relay_traces *traces, unsigned slot, struct relay_trace *trace);

/* Change one trace, or, with id 0, remove it: every program sees it at its next event. For the server. */
void relay_traces_set(struct relay_traces *traces, unsigned slot, const struct relay_trace *trace);

/* End the state in which a removed trace stays active as a trace that wants no event, so that each program checks once
 * more and releases its buffers. Call it some time after the removal. For the server. */
void relay_traces_settle(struct relay_traces *traces);

/* Return how many events programs of the store's own user and root have lost because they got no buffers in the trace with
 * this id; also after it was removed, as long as no other trace has its slot. 0 also if this process may not read the store. */
uint64_t relay_traces_lost(const struct relay_traces *traces, unsigned slot, uint64_t id);

/* Read the same counts of another user's programs from STORE/.traces-lost-UID: for each slot the trace's id, or 0, and the
 * events. That user can write anything there. 0 or -errno: -EBADMSG the file is too short. */
int relay_traces_lost_in(const char *file, uint64_t ids[RELAY_N_TRACES], uint64_t lost[RELAY_N_TRACES]);

/* Return a descriptor, for writing, of the file in which programs of another user count, made if it does not exist. It
 * belongs to `traces`. -ENOSPC: there are 1024 such files. For the server. */
int relay_traces_lost_file(struct relay_traces *traces, uint32_t uid);

/* Return an id that no trace of this store has had. For the server. */
uint64_t relay_traces_new_id(struct relay_traces *traces);

/* Store `log`, a number that differs each time a channel `log` is made; 0: there is none. For the server. */
void relay_traces_set_log(struct relay_traces *traces, uint32_t log);

/*
 * Make the directory of one process (buffers=peruser: one user; shared: all) in a trace, whose own directory exists.
 *
 * process   the program's name; characters that must not be in a path are replaced
 * pid       the process, for buffers=perprocess, in the server's PID namespace
 * vpid      the process in its own PID namespace
 * uid, gid  owner of the files; only root may give another than the caller
 * lock      receives a descriptor of .events, locked for this process; NULL: do not lock it
 * name      receives the directory's name; if PROCESS-PID is taken, it is PROCESS-PID-2 ...
 *
 * 0; with buffers=peruser or shared 1 if it existed. -ENOSPC no memory; -ENOENT no such trace; -EINVAL the trace's
 * name, clock or buffers are not allowed.
 */
int relay_trace_make(const char *store, const struct relay_trace *trace, const char *process, uint32_t pid,
                     uint32_t vpid, uint32_t uid, uint32_t gid, int *lock, char name[RELAY_TRACE_NAME_BYTES]);

/*
 * The same with unnamed buffers that this process has already written, with timestamps of CLOCK_MONOTONIC. They are buffers
 * of this process alone, also in a trace with shared buffers. `declarations` are those of their events, in TSDL. Errors also
 * as relay_store_adopt().
 */
int relay_trace_adopt(const char *store, const struct relay_trace *trace, const char *process, const int *fds, size_t n,
                      const char *declarations, int *lock, char name[RELAY_TRACE_NAME_BYTES]);

/*
 * Allocate memory for the data of a process's buffer, which is made without.
 *
 * dir     STORE/TRACE
 * memory  bytes that all processes of the trace may take together; 0: no limit
 * mem_fd  the buffer, open for writing
 * bytes   to allocate, from the beginning of the file
 *
 * 0, also if the memory is allocated already. -ENOSPC: there is no memory, or it would exceed `memory` even after the
 * directories of all dead processes are removed; -EINVAL: the file is not a regular file, or shorter than `bytes`.
 */
int relay_trace_allocate(const char *dir, uint64_t memory, int mem_fd, uint64_t bytes);

/* Remove a directory from the store at once, and close its buffers. */
int relay_trace_remove(const char *dir);

/* The same unless a process writes to it, or is about to: -EBUSY. No process can begin to write meanwhile. Must not be called
 * by a process that writes there itself. */
int relay_trace_remove_dead(const char *dir);

/* 1: a process writes to the directory, or the server has offered it to one within the last ten seconds; 0: no process
 * writes, or will. Must not be called by a process that writes there itself, because closing any descriptor of a file
 * releases the process's fcntl(2) lock on it. */
int relay_trace_is_alive(const char *dir);

/*
 * Read from the memory of a running program which events it has declared, whether or not a trace wants them.
 *
 * memory   a descriptor of its /proc/PID/mem
 * page     an address at which the program has mapped the first page of the control file. A program has one for each of
 *          its object files with tracepoints, and only one is followed by this library's data: try each
 * text     receives the program's name, a newline, and the declarations in TSDL, without a null byte
 *
 * Returns the length. -ENOENT: this library, or this version of it, is not behind the page; -EFBIG: the text is longer than
 * `size`; -ENOMEM; else as pread(2).
 */
ssize_t relay_trace_running(int memory, uint64_t page, char *text, size_t size);

/* 1: the trace is started, and takes an event, "provider:name", of a process; 0. pid: in the file server's PID namespace;
 * uid: the effective user. */
int relay_trace_takes(const struct relay_trace *trace, const char *program, uint32_t pid, uint32_t uid,
                      const char *event);

/*
 * The buffers of a trace are read in whole packets: with relay_consume_begin() in store.h, or, without consuming, with the
 * following functions.
 *
 * Copy the packet of sub-buffer *number (the kernel's free-running count), or of the first one after it that is not
 * overwritten yet; *number receives the number of the one copied. *records is the number of events in the packets
 * copied so far, and is updated. The packet's count of lost events includes all earlier events that are in none of
 * these packets.
 *
 * Returns the packet's bytes; 0: it is not finished; -EMSGSIZE: it is longer than `size` (no packet is longer than
 * subbuf_size); -EBADMSG.
 */
ssize_t relay_packet_copy(struct rchan_buf *buf, uint64_t *number, uint64_t *records, void *to, size_t size);

/*
 * Begin copying: *number receives the first sub-buffer that can be copied, and *records the number of events before it that
 * are not lost, because another reader has consumed them. Consumed packets are copied, too, as long as they are not
 * overwritten. 0; -EINVAL: this buffer has no packets; -EBADMSG.
 */
int relay_packet_start(struct rchan_buf *buf, uint64_t *number, uint64_t *records);

/* How the fields of a type are stored and shown. */
enum relay_field_kind {
	RELAY_FIELD_UNSIGNED = 1,
	RELAY_FIELD_SIGNED = 2,
	RELAY_FIELD_HEX = 3, /* unsigned */
	RELAY_FIELD_REAL = 4,
	RELAY_FIELD_STRING = 5, /* up to and including a null byte */
	RELAY_FIELD_BYTES = 6   /* uint32_t length, then this many bytes */
};

struct relay_field_type {
	const char *name; /* in RELAY_TRACE_EVENT() */
	enum relay_field_kind kind;
	uint32_t bytes;    /* of a field; 0: their number varies */
	const char *alias; /* TSDL's declaration of the type; "": none is needed */
	const char *tsdl;  /* the declaration of a field, with $ for its name */
};

/* The type of this number (enum relay_trace_type); NULL: there is none. */
const struct relay_field_type *relay_field_type_at(uint32_t type);

/*
 * Checking packets of programs that are not trusted: do their events match the program's declarations?
 *
 * Layouts give the length of events by id. context_bytes: bytes between an event's header and its first field, 8 in buffers
 * of several processes, else 4. NULL: no memory.
 */
struct relay_layouts;
struct relay_layouts *relay_layouts_new(uint32_t context_bytes);
void relay_layouts_free(struct relay_layouts *layouts);

/* Add an event with fields of these types, as in struct relay_trace_field. 0; -EEXIST: the id was added before;
 * -EINVAL: an unknown type, or too many fields; -ENOMEM. */
int relay_layouts_add(struct relay_layouts *layouts, uint64_t id, const uint32_t *types, uint32_t n_types);

/* The same with names, for programs that also show the events (<relayfs/merge.h>). All of `event` is copied, except its
 * id, `wanted` and `structs`. -EINVAL also: a field is in too many structs. */
int relay_layouts_declare(struct relay_layouts *layouts, uint64_t id, const struct relay_trace_event *event);

enum relay_packet_fault {
	RELAY_PACKET_GOOD = 0,
	RELAY_PACKET_CUT = 1,        /* the remaining bytes are shorter than an event's header */
	RELAY_PACKET_TIME = 2,       /* an event is older than the one before it, or outside of the packet's times */
	RELAY_PACKET_UNDECLARED = 3, /* no event of this id is declared */
	RELAY_PACKET_FIELDS = 4      /* the fields extend beyond the packet */
};

struct relay_packet_checked {
	uint64_t good_bytes; /* of the events before the first wrong one */
	uint64_t n_events;   /* number of these */
	uint64_t time;       /* of the last of these; `begin` if there are none */
	uint64_t id;         /* of the wrong event, if its id or its fields are wrong */
	uint32_t fault;      /* enum relay_packet_fault */
	uint32_t unused;
};

/*
 * Check `length` bytes of events, which follow a packet's header, up to the first that a viewer could not read. The memory
 * must not change meanwhile, so it has to be a private copy. begin, end: the times in the header.
 */
void relay_packet_check(const struct relay_layouts *layouts, const void *events, size_t length, uint64_t begin,
                        uint64_t end, struct relay_packet_checked *checked);

/* The header of each packet: CTF's packet header and context. Little-endian, without padding. */
struct relay_packet {
	uint32_t magic;              /* 0xc1fc1fc1 */
	uint32_t stream_id;          /* 0 */
	uint64_t stream_instance_id; /* the CPU */
	/* Writers store these in a certain order when they append a packet: see relayfs_fuse/record/stream.py. */
	uint64_t packet_size;      /* bits */
	uint64_t events_discarded; /* lost up to the packet's end, since the buffer was made */
	uint64_t packet_seq_num;   /* the sub-buffer's number */
	uint64_t timestamp_end, timestamp_begin;
	uint64_t content_size; /* bits */
	uint32_t cpu_id;
	uint32_t pid; /* 0: several processes */
};
#define RELAY_PACKET_MAGIC 0xc1fc1fc1u
RELAY_STATIC_ASSERT(sizeof(struct relay_packet) == 72, "programs read it from disk");

#ifdef __cplusplus
}
#endif
#endif
