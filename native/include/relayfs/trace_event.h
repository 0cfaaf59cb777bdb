/* SPDX-License-Identifier: MIT */
/*
 * <relayfs/trace_event.h>: events and how they are written, without the preprocessor's part: for other languages than C.
 * Programs in C include <relayfs/trace.h>.
 */
#ifndef RELAYFS_TRACE_EVENT_H
#define RELAYFS_TRACE_EVENT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of one event at most, header included; one that is longer, or does not fit into a sub-buffer of its trace, is counted as
 * lost. */
enum { RELAY_TRACE_EVENT_MAX = 1 << 30 };

/* Bytes of an event that may be made on the stack of its thread; a longer one is made in memory of the library's. */
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
	RELAY_TRACE_STRING, /* bytes up to and with a null byte */
	RELAY_TRACE_BYTES,  /* uint32_t length, then so many bytes */
	RELAY_N_TRACE_TYPES
};

struct relay_trace_field {
	const char *name;
	uint32_t type; /* enum relay_trace_type */
};

/* A declared event. Its maker fills the first four, and keeps them as long as it is registered. */
struct relay_trace_event {
	const char *provider, *name;
	const struct relay_trace_field *fields; /* in the order in which they are written */
	uint32_t n_fields;
	uint32_t unused;
	uint64_t id;     /* of its declaration in this process, from 1; 0: none. Writer: the library */
	uint64_t wanted; /* page's generation << 32 | bits of the traces that want it. Writer: the library */
};

/* What a record begins with: room in which the library puts the head that the event has in each trace. The fields follow without
 * padding. */
struct relay_trace_record {
	uint64_t room[2];
};

/*
 * What a program sees of the traces: one page in each object file's own memory, zero until there is a mount, then the
 * first page of the mount's control file, mapped over it, which cannot be written.
 */
struct relay_trace_page {
	uint64_t magic;
	uint32_t version;
	uint32_t active;     /* a bit for each trace that is started. Writer: the file server, as of all here */
	uint64_t generation; /* << 32; what a relay_trace_event's `wanted` is while no trace wants it */
	uint32_t changes;    /* futex: the same count */
	uint32_t log;        /* which channel `log` there is, for relay_log(); 0: none */
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

/* Does any trace want it? Relaxed: whoever gets past it looks again, in order, inside. */
#define RELAY_TRACE_IS_WANTED(page, event)                                               \
	__builtin_expect(__atomic_load_n(&(page)->active, __ATOMIC_RELAXED) &&           \
	                     __atomic_load_n(&(event)->wanted, __ATOMIC_RELAXED) !=      \
	                         __atomic_load_n(&(page)->generation, __ATOMIC_RELAXED), \
	                 0)

/* Of functions that are bound when the program starts: to find one at its first call takes more stack than an event may. */
#if defined(__has_attribute)
#if __has_attribute(__noplt__)
#define RELAY_TRACE_BOUND_EARLY __attribute__((__noplt__))
#endif
#endif
#ifndef RELAY_TRACE_BOUND_EARLY
#define RELAY_TRACE_BOUND_EARLY
#endif

/*
 * Write one record, of `length` bytes, its head included, to each trace that wants the event. What cannot be written is
 * counted in the buffers as lost; so is an event whose record is NULL. Leaves errno as it was; never blocks once the buffers
 * are there.
 */
RELAY_TRACE_BOUND_EARLY void relay_trace_emit(struct relay_trace_event *event, struct relay_trace_record *record,
                                              size_t length);

/*
 * Memory for a record of so many bytes, until relay_trace_give_back(). NULL: it is longer than RELAY_TRACE_EVENT_MAX or than any
 * trace's sub-buffers, or there is none, which is so while 64 threads of this process are making long records. Memory for more
 * than 65600 bytes takes two system calls: one here, one when it is given back.
 */
RELAY_TRACE_BOUND_EARLY struct relay_trace_record *relay_trace_borrow(size_t length);
RELAY_TRACE_BOUND_EARLY void relay_trace_give_back(struct relay_trace_record *record);

/* Make this process's buffers in all started traces that want one of its events, as its first event would. From then on the
 * calling thread writes its events of up to 65600 bytes without a system call, also in seccomp(2)'s strict mode: see
 * relayfs-trace(3). */
void relay_trace_prepare(void);

/*
 * Declare an event at run time, for languages without a preprocessor; everything is copied. NULL and errno: EINVAL a
 * name is empty, longer than 127 bytes or not of letters, digits and _ (dots in a provider's, too), a type is not known,
 * there are more than 64 fields, or two of one name; ENOSPC this process has declared 65535 others; ENOMEM. One that has been
 * declared before is returned again.
 */
struct relay_trace_event *relay_trace_declare(const char *provider, const char *name,
                                              const struct relay_trace_field *fields, uint32_t n_fields);

/* RELAY_TRACE_IS_WANTED() of such an event. */
int relay_trace_wants(const struct relay_trace_event *event);

#define RELAY_LOG_CHECKED __attribute__((__format__(__printf__, 1, 2)))

/*
 * One line of text for the channel `log` of the mount, if somebody has made one (`create log`); else, a load and a branch.
 * The line is "[SECONDS.MICROSECONDS] PROGRAM[PID]: TEXT\n", its time that of CLOCK_MONOTONIC, as in the kernel's log.
 *
 * Returns 1: it is written; 0: nobody listens; else an error of relay_write() or relay_attach(). Leaves errno as it was.
 */
RELAY_LOG_CHECKED int relay_log(const char *format, ...);
int relay_log_text(const char *text, size_t length); /* the same for text that is ready */

/* Is there somebody to read what relay_log() writes? */
int relay_log_is_heard(void);

/* What <relayfs/trace.h> registers for each object file: nothing else calls these. */
void relay_trace_register(struct relay_trace_object *object);
void relay_trace_unregister(struct relay_trace_object *object);

#ifdef __cplusplus
}
#endif
#endif
