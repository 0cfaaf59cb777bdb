/* SPDX-License-Identifier: MIT */
/* What this process has of each trace, by slot: those of the control file, and RELAY_EARLY. Under relay_trace_lock(). */
#ifndef RELAYFS_TRACE_JOINED_H
#define RELAYFS_TRACE_JOINED_H

#include "trace/writer.h"

/* Where this process writes, by slot; read with acquire. NULL: nowhere, yet. The array itself is NULL while nothing was ever traced.
 * Writer: trace/joined.c */
extern struct relay_tracing **relay_tracings __attribute__((visibility("hidden")));

/* Once, before the others. false: no memory. */
bool relay_joined_begin(void);

/* In the child of a fork(): let go of what is the parent's. */
void relay_joined_begin_child(void);

struct relay_tracing *relay_joined_at(unsigned slot);

/*
 * Join a trace. NULL: it cannot be done now, and an event of this length, if it has one, is counted as lost.
 *
 * control    NULL: there is none yet
 */
struct relay_tracing *relay_joined_join(const struct relay_trace_home *home, struct relay_traces *control,
                                        unsigned slot, const struct relay_trace *trace, size_t length);

/* What was written stays; a thread that is writing to it goes on. */
void relay_joined_leave(unsigned slot);

/* True if threads may still be writing to one that was left. */
bool relay_joined_has_retired(void);

/* The trace that early events wait for is there, in this slot: what has waited, and what was lost, goes on as part of it. */
void relay_joined_end_early(const struct relay_trace_home *home, struct relay_traces *control, unsigned slot,
                            const struct relay_trace *trace);

/* Leave early events that lie in another store than this home, if it is this user's. Their directory, "STORE/.early/NAME/PROCESS-PID",
 * which the caller frees; NULL: none are left, or no memory. */
char *relay_joined_carry(const struct relay_trace_home *home);

/* Some threads of this process write without a system call from now on. */
void relay_joined_silence(void);
bool relay_joined_is_silent(void);

/* Declare an event in all traces; or again what was refused: there may be room by now. */
void relay_joined_declare(const struct relay_trace_event *event);
void relay_joined_declare_again(void);

#endif
