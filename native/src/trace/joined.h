/* SPDX-License-Identifier: MIT */
/* The traces that this process writes to: one struct relay_tracing (trace/writer.h) for each joined trace, by slot. The
 * slots are those of the control file and RELAY_EARLY (trace/early.h). Callers of all functions hold
 * relay_trace_lock(), except in the child of fork() while it has one thread. */
#ifndef RELAYFS_TRACE_JOINED_H
#define RELAYFS_TRACE_JOINED_H

#include "trace/writer.h"

/* The tracing of each slot, for threads that write, which hold no lock and load the elements with acquire. NULL: the
 * trace is not joined. The array itself is NULL before relay_joined_begin(). Writer: trace/joined.c */
extern struct relay_tracing **relay_tracings __attribute__((visibility("hidden")));

/* Allocate relay_tracings; to be called once, before the other functions. false: no memory. */
bool relay_joined_begin(void);

/* In the child of fork(): leave the traces that the parent has joined. */
void relay_joined_begin_child(void);

/* Return the tracing of a slot. NULL: the trace is not joined. */
struct relay_tracing *relay_joined_at(unsigned slot);

/*
 * Join a trace: open it and declare all events. After a failure it is not tried again for 100 ms.
 *
 * control    the control file; NULL: there is none yet
 * length     of the event, in bytes, that is to be written; 0: none
 *
 * NULL: the trace cannot be joined now, and the event was counted as lost.
 */
struct relay_tracing *relay_joined_join(const struct relay_trace_home *home, struct relay_traces *control,
                                        unsigned slot, const struct relay_trace *trace, size_t length);

/* Leave the joined trace of a slot. Its directory stays; threads that are writing to it complete their events. */
void relay_joined_leave(unsigned slot);

/* True if threads may still be writing to a trace that was left. */
bool relay_joined_has_retired(void);

/* The trace for which early events were written exists now, in this slot: add to it the tracing of the early events,
 * and the count of those that were lost. */
void relay_joined_end_early(const struct relay_trace_home *home, struct relay_traces *control, unsigned slot,
                            const struct relay_trace *trace);

/* If early events were written to another store than home->store, leave their directory. Returns its path,
 * "STORE/.early/NAME/PROCESS-PID", to be freed. NULL: there are none, or home->store is NULL, or no memory. */
char *relay_joined_carry(const struct relay_trace_home *home);

/* From now on some threads of this process write without system calls (relay_trace_prepare()): prepare each trace for
 * that when it is joined, and those that are joined already. */
void relay_joined_silence(void);
/* True after that. */
bool relay_joined_is_silent(void);

/* Note in the buffers of this process that it ends its part of each joined trace in order. Called without the lock, which
 * another thread may hold while the process ends. */
void relay_joined_note_left(void);

/* Declare an event in each joined trace. */
void relay_joined_declare(const struct relay_trace_event *event);
/* Declare again, in each joined trace, the events whose declarations have failed there. */
void relay_joined_declare_again(void);

/* Whether a trace is joined. */
bool relay_joined_any(void);

/* Call relay_tracing_put_objects() for all joined traces. */
void relay_joined_put_objects(void);

#endif
