/* SPDX-License-Identifier: MIT */
/*
 * <relayfs/trace_event.h>: events and the functions that write them, for languages that cannot use the macros of
 * <relayfs/trace.h>. Programs in C include <relayfs/trace.h>.
 */
#ifndef RELAYFS_TRACE_EVENT_H
#define RELAYFS_TRACE_EVENT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The longest event in bytes, including its header; an event that is longer, or does not fit into a sub-buffer of its trace,
 * is counted as lost. */
enum { RELAY_TRACE_EVENT_MAX = 1 << 30 };

/* The longest event in bytes that is built on the thread's stack; a longer event is built in memory of the library. */
enum { RELAY_TRACE_STACK_MAX = 512 };

enum relay_trace_type {
	RELAY_TRACE_U8,
	RELAY_TRACE_U16,
	RELAY_TRACE_U32,
	RELAY_TRACE_U64,
	RELAY_TRACE_I8,
	RELAY_TRACE_I16,
	RELAY_TRACE_I32,
	RELAY_TRACE_I64,
	RELAY_TRACE_X8,
	RELAY_TRACE_X16,
	RELAY_TRACE_X32,
	RELAY_TRACE_X64,
	RELAY_TRACE_F32,
	RELAY_TRACE_F64,
	RELAY_TRACE_STRING, /* bytes up to and including a null byte */
	RELAY_TRACE_BYTES,  /* uint32_t length, then this many bytes */
	RELAY_N_TRACE_TYPES
};

/* Further bits of a field's type: of an enum, a sequence or an array, whose numbers have the enum relay_trace_type. */
enum {
	RELAY_TRACE_IS_ENUM = 0x100,     /* an integer, of which struct relay_trace_enum has the labels */
	RELAY_TRACE_IS_SEQUENCE = 0x200, /* uint32_t count, then this many numbers */
	RELAY_TRACE_IS_STRUCT = 0x400,   /* in declarations of <relayfs/trace.h>: a struct, see relay_trace_members */
	RELAY_TRACE_COUNT_SHIFT =
	    16 /* an array: the count of its numbers, 1 to 65535, is in the bits from this one on */
};

/* The most structs that a field may be in. */
enum { RELAY_TRACE_DEPTH_MAX = 8 };

/*
 * Fields of a struct follow one another, with the names "STRUCT.FIELD", or "STRUCT.STRUCT.FIELD" and so on, of at most 127 bytes.
 * They are written without padding, as all fields are.
 */
struct relay_trace_field {
	const char *name;
	uint32_t type; /* enum relay_trace_type */
};

/* The labels of a field whose type has RELAY_TRACE_IS_ENUM: at most 256, no two the same. */
struct relay_trace_label {
	const char *name;
	int64_t value;
};
struct relay_trace_enum {
	const char *field; /* its name */
	const struct relay_trace_label *labels;
	uint32_t n_labels;
};

/* The fields of a struct. The macros of <relayfs/trace.h> cannot insert them into the event's list of fields, so in that list a
 * struct is one field, of the type RELAY_TRACE_IS_STRUCT. */
struct relay_trace_members {
	const struct relay_trace_field *fields;
	const struct relay_trace_enum *enums;
	const struct relay_trace_members *const *structs; /* of the fields that are structs, in their order */
	uint32_t n_fields, n_enums;
};

/* The severity of an event: LTTng's log levels, of which the first seven and the last have the names of syslog's. */
enum relay_trace_level {
	RELAY_TRACE_LEVEL_EMERG,
	RELAY_TRACE_LEVEL_ALERT,
	RELAY_TRACE_LEVEL_CRIT,
	RELAY_TRACE_LEVEL_ERR,
	RELAY_TRACE_LEVEL_WARNING,
	RELAY_TRACE_LEVEL_NOTICE,
	RELAY_TRACE_LEVEL_INFO,
	RELAY_TRACE_LEVEL_DEBUG_SYSTEM,
	RELAY_TRACE_LEVEL_DEBUG_PROGRAM,
	RELAY_TRACE_LEVEL_DEBUG_PROCESS,
	RELAY_TRACE_LEVEL_DEBUG_MODULE,
	RELAY_TRACE_LEVEL_DEBUG_UNIT,
	RELAY_TRACE_LEVEL_DEBUG_FUNCTION,
	RELAY_TRACE_LEVEL_DEBUG_LINE,
	RELAY_TRACE_LEVEL_DEBUG,
	RELAY_N_TRACE_LEVELS
};

/* A declared event. The declaring program sets all members but id and wanted, and keeps them valid as long as it is registered.
 * relay_trace_declare_event() takes no `structs`. */
struct relay_trace_event {
	const char *provider, *name;
	const struct relay_trace_field *fields; /* in the order in which they are written */
	uint32_t n_fields;
	uint16_t level; /* enum relay_trace_level + 1; 0: the declaration has none */
	/* 0 and 1: the struct ends before `file`, or before `n_enums`, as in programs compiled with earlier versions of this
	 * header; 2: there is no `structs`; 3: it has all members, until the library has stored the fields of its structs
	 * in the list, and 2 here, when the event is registered */
	uint16_t has_place;
	uint64_t id; /* of its declaration in this process, from 1; 0: none. Writer: the library */
	/* the page's count of changes << 32 | bit 31: a trace has a condition | a bit for each trace that wants the
	 * event. Writer: the library */
	uint64_t wanted;
	const char *file; /* where it is declared, and the line there; NULL: unknown */
	uint32_t line;
	uint32_t n_enums;
	const struct relay_trace_enum *enums;             /* the labels of fields that are enums */
	const struct relay_trace_members *const *structs; /* as in relay_trace_members */
};

/* The beginning of a record, in which the library stores the header and the context that the event has in each trace. The
 * fields follow without padding. */
struct relay_trace_record {
	uint64_t room[2];
};

/*
 * The traces' state for programs: one page in the memory of each object file. It is zero until there is a mount; then the
 * library maps the first page of the mount's control file over it, read-only.
 */
struct relay_trace_page {
	uint64_t magic;
	uint32_t version;
	uint32_t
	    active; /* a bit for each trace that is started. Writer of this and all other members: the file server */
	uint64_t generation; /* count of changes << 32: the value of `wanted` of an event that no trace wants */
	uint32_t changes;    /* futex: the same count, for programs that wait for a change */
	uint32_t log;        /* changes each time the channel `log` is made, for relay_log(); 0: there is none */
};

#if defined(__aarch64__)
#define RELAY_TRACE_PAGE_BYTES 65536
#else
#define RELAY_TRACE_PAGE_BYTES 4096
#endif

/* One program or shared library with tracepoints. */
struct relay_trace_object {
	struct relay_trace_page *page;
	struct relay_trace_event *const *events, *const *events_end;
	struct relay_trace_object *next; /* of all that are registered */
};

/* True if a trace may want the event. Relaxed, because relay_trace_emit() checks again, ordered. */
#define RELAY_TRACE_IS_WANTED(page, event)                                               \
	__builtin_expect(__atomic_load_n(&(page)->active, __ATOMIC_RELAXED) &&           \
	                     __atomic_load_n(&(event)->wanted, __ATOMIC_RELAXED) !=      \
	                         __atomic_load_n(&(page)->generation, __ATOMIC_RELAXED), \
	                 0)

/* Functions with this attribute are bound when the program starts, because lazy binding at the first call would need
 * more stack than a tracepoint may use. */
#if defined(__has_attribute)
#if __has_attribute(__noplt__)
#define RELAY_TRACE_BOUND_EARLY __attribute__((__noplt__))
#endif
#endif
#ifndef RELAY_TRACE_BOUND_EARLY
#define RELAY_TRACE_BOUND_EARLY
#endif

/*
 * Write one record, of `length` bytes including its header, to each trace that wants the event. If a trace's buffer has no
 * room, or the record is NULL, the event is counted in the buffer as lost. Leaves errno unchanged; never blocks once the
 * buffers exist.
 */
RELAY_TRACE_BOUND_EARLY void relay_trace_emit(struct relay_trace_event *event, struct relay_trace_record *record,
                                              size_t length);

/* The same for a record that a program has packed itself, which may be longer than RELAY_TRACE_EVENT_MAX: then it is lost. */
void relay_trace_emit_packed(struct relay_trace_event *event, void *record, size_t length);

/*
 * relay_trace_emit() for an event of RELAY_TRACE_STATE(), whose first field is its key: this process keeps the record as the
 * last value for its key, also while no trace wants it, and writes it beside its buffers in each trace whose rules choose
 * the event. To be called whether or not a trace wants the event. It takes the library's lock and, in such a trace, system
 * calls, and allocates memory at the first call. A thread in strict mode of seccomp(2) only emits the event.
 *
 * The values of 256 keys of all events together are kept, each with up to 984 bytes of fields. If there are more, the one that
 * was set longest ago is dropped; of a longer one nothing is kept for its key. Recordings count both as lost.
 */
RELAY_TRACE_BOUND_EARLY void relay_trace_set_state(struct relay_trace_event *event, struct relay_trace_record *record,
                                                   size_t length);

/* Keep no value any more for the key that the record's first field has; other fields need not be there. */
void relay_trace_clear_state(struct relay_trace_event *event, const struct relay_trace_record *record, size_t length);

/*
 * Return memory for a record of `length` bytes, valid until relay_trace_give_back(). NULL: it is longer than
 * RELAY_TRACE_EVENT_MAX or than the sub-buffers of all traces, or there is no memory, for example because 64 threads of this
 * process are building long records. Memory for more than 65600 bytes takes two system calls: one here, one when it is
 * given back.
 */
RELAY_TRACE_BOUND_EARLY struct relay_trace_record *relay_trace_borrow(size_t length);
RELAY_TRACE_BOUND_EARLY void relay_trace_give_back(struct relay_trace_record *record);

/* Make this process's buffers in all started traces that want one of its events, as its first event would. After this the
 * calling thread writes events of up to 65600 bytes without a system call, also in seccomp(2)'s strict mode: see
 * relayfs-trace(3). */
void relay_trace_prepare(void);

/* Note that this process is about to end in order, so that it leaves no crash card (relayfs(5)). For programs that call
 * _exit(2) then, such as children of fork(); exit(3) does it, too. Events can still be written. By any thread, but not in a
 * signal handler. */
void relay_trace_end(void);

/*
 * Declare an event at run time, for languages without a preprocessor; everything is copied. NULL and errno: EINVAL a
 * name is empty, longer than 127 bytes or has other characters than letters, digits and _ (dots are allowed in a
 * provider's name, and between the names of a struct and its fields), a type is unknown, there are more than 64 fields, two
 * fields have the same name, fields of a struct do not follow one another or are in more than 8 structs, an enum has no labels
 * or labels that are no such names, or all names together are too long; ENOSPC this process has declared 65535 other
 * events; ENOMEM. An event that was declared before is returned again.
 */
struct relay_trace_event *relay_trace_declare(const char *provider, const char *name,
                                              const struct relay_trace_field *fields, uint32_t n_fields);

/* The same with the level, file and line of `event`; its id and wanted are not used. EINVAL also: there is no such
 * level. An event that was declared before with the same level is returned again, even if its file or line differs. */
struct relay_trace_event *relay_trace_declare_event(const struct relay_trace_event *event);

/* RELAY_TRACE_IS_WANTED() for an event of relay_trace_declare(). */
int relay_trace_wants(const struct relay_trace_event *event);

#define RELAY_LOG_CHECKED __attribute__((__format__(__printf__, 1, 2)))

/*
 * Write one line of text to the channel `log` of the mount, if it exists (`create log`); otherwise this is a load and a
 * branch. The line is "[SECONDS.MICROSECONDS] PROGRAM[PID]: TEXT\n", with the time of CLOCK_MONOTONIC, as in the kernel's log.
 *
 * Returns 1: it is written; 0: the channel does not exist; else an error of relay_write() or relay_attach(). Leaves errno
 * unchanged.
 */
RELAY_LOG_CHECKED int relay_log(const char *format, ...);
int relay_log_text(const char *text, size_t length); /* the same for text that is not a format */

/* 1: the channel `log` exists; 0: it does not. */
int relay_log_is_heard(void);

/* Called only by code that <relayfs/trace.h> adds to each object file. */
void relay_trace_register(struct relay_trace_object *object);
void relay_trace_unregister(struct relay_trace_object *object);

#ifdef __cplusplus
}
#endif
#endif
