/* SPDX-License-Identifier: MIT */
/*
 * Which traces exist, which events of this process they want, and when this process joins and leaves them. The control
 * file tells which traces exist and what they want; the joined traces are in trace/joined.h.
 *
 * An event of this process is written in these steps (trace/tracepoint.c):
 *
 *     relay_traced_decide()    which traces want it; again after each change of the control file
 *     relay_traced_at()        the buffers in each of these traces; the first time, the process joins the trace
 */
#ifndef RELAYFS_TRACE_PROCESS_H
#define RELAYFS_TRACE_PROCESS_H

#include "trace/objects.h"
#include "trace/writer.h"

/* True if an event of `length` bytes fits into a sub-buffer of one of the traces that this process has found. */
bool relay_traced_holds(size_t length);

/* Find the place of a channel in the store or mount whose traces this process writes to, to be freed by
 * relay_place_free(). false: no store or mount was found yet, or no memory. */
bool relay_traced_place(struct relay_place *place, const char *channel);

/* --- the caller holds relay_trace_lock() --- */

/* Search for the control file and map it; to be called once. early: $RELAYFS_TRACE_EARLY, or NULL. true:
 * relay_trace_wait() has to be called: there is no control file, or not yet the trace of early events. */
bool relay_traced_begin(const char *early);

/* Leave the parent's traces, in the child of fork(). Called without the lock, while the child has one thread and blocks
 * all signals. true: as relay_traced_begin(). */
bool relay_traced_begin_child(void);

/* Copy the traces from the control file if it has changed, and leave those that have gone. */
void relay_traced_look(void *unused);

/* The same; then decide which traces want the event. Returns the new value of event->wanted. */
uint64_t relay_traced_decide(struct relay_trace_event *event);

/* The same as relay_traced_look(); then return the tracing of a slot, which is joined if it is not yet, for an event of
 * `length` bytes. NULL: the trace cannot be joined now, and the event was counted as lost. */
struct relay_tracing *relay_traced_at(unsigned slot, size_t length);

/* Join all traces that want an event of this process, for relay_trace_prepare(). */
void relay_traced_prepare(void);

/* Set the state of an event's key (trace/states.h), or clear it, and write that to each joined trace. fields: `length` bytes
 * of them; NULL: they are unknown, and no key of the event has a state any more. */
void relay_traced_set_state(const struct relay_trace_event *event, const void *fields, size_t length);
void relay_traced_clear_state(const struct relay_trace_event *event, const void *fields, size_t length);

/* Add an object (trace/objects.h), and show its tracepoints the control file's page. */
void relay_traced_add(struct relay_trace_object *object);

/* Add an event that is declared at run time, and declare it in each joined trace. */
void relay_traced_add_declared(struct relay_declared *declared);

/* --- for the thread of trace/wait.c; these take relay_trace_lock() --- */

struct relay_traced_state {
	struct relay_trace early; /* the trace of early events, which does not exist yet; id 0: none */
	uint32_t *changes;        /* futex, relay_trace_page.changes; NULL: there is no control file yet */
	uint32_t changed;         /* its value when the control file was last copied */
	bool has_mount;           /* the traces are those of a mount */
};

/* Copy the traces if the control file has changed; if the trace of early events exists now, add the early events to it.
 * true: the process still waits for a control file or for that trace. */
bool relay_traced_waits(struct relay_traced_state *state);

/* Write to the traces of this control file from now on. `home` and `control` then belong to the library. *carried
 * receives the directory of early events in another store, for relay_early_carry(), to be freed; or NULL. */
void relay_traced_connect(const struct relay_trace_home *home, struct relay_traces *control, char **carried);

/* True if no thread is writing any more to a trace that this process has left. */
bool relay_traced_has_left(void);

#endif
