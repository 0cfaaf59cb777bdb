/* SPDX-License-Identifier: MIT */
/* The traces of this process: which there are, which events they want, and where this process writes them. */
#ifndef RELAYFS_TRACE_PROCESS_H
#define RELAYFS_TRACE_PROCESS_H

#include "trace/objects.h"
#include "trace/writer.h"

/* Does some trace have sub-buffers for an event of this length, as far as this process knows? */
bool relay_traced_holds(size_t length);

/* Where a channel is of the store whose traces are ours. false: there is none yet, or no memory. */
bool relay_traced_place(struct relay_place *place, const char *channel);

/* --- under relay_trace_lock() --- */

/* Look for the traces, once. `early` is $RELAYFS_TRACE_EARLY, or NULL. true: relay_traced_waits(). */
bool relay_traced_begin(const char *early);

/* In the child of a fork(): let go of what is the parent's. true: relay_traced_waits(). */
bool relay_traced_begin_child(void);

/* Copy the control file, if it has changed. */
void relay_traced_look(void *unused);

/* Look, and return what the event's `wanted` is then. */
uint64_t relay_traced_decide(struct relay_trace_event *event);

/* Look, and join the trace of a slot, for an event of this length. NULL: that cannot be done now, and the event is counted as lost. */
struct relay_tracing *relay_traced_at(unsigned slot, size_t length);

/* Join all traces that want an event; from now on some threads make no system calls. */
void relay_traced_prepare(void);

/* A program's or library's events, which lie together, come; relay_objects_remove() when they go. */
void relay_traced_add(struct relay_trace_object *object);

/* Declare one that is declared at run time in all traces. */
void relay_traced_add_declared(struct relay_declared *declared);

/* --- for trace/wait.c --- */

/* What the thread that waits is to look at. */
struct relay_traced_state {
	struct relay_trace early; /* that events wait for; id 0: for none */
	uint32_t *changes;        /* futex, in the control file; NULL: there is none yet */
	uint32_t changed;         /* its value when that was looked at */
	bool has_mount;
};

/* Does this process still wait for a mount, or for the trace of early events? If that is there by now, they become part of it. */
bool relay_traced_waits(struct relay_traced_state *state);

/* From now on the traces of this control file are ours; both become the library's. *carried, if it is not NULL, is a directory of
 * early events in another store, for relay_early_carry(); the caller frees it. */
void relay_traced_connect(const struct relay_trace_home *home, struct relay_traces *control, char **carried);

/* Has every thread left the buffers that the process no longer writes to? */
bool relay_traced_has_left(void);

#endif
