/* SPDX-License-Identifier: MIT */
/*
 * The events of this process, and the pages by which tracepoints know whether a trace wants an event. An object is the
 * program or a shared library; each has a section with pointers to its events, and a page (struct relay_trace_object).
 * Events that are declared at run time belong to this library, whose page is relay_traced_own. Callers of all functions
 * hold relay_trace_lock().
 */
#ifndef RELAYFS_TRACE_OBJECTS_H
#define RELAYFS_TRACE_OBJECTS_H

#include "trace/declared.h"

#include <relayfs/trace_store.h>

/* relay_trace_page.log before this process has searched for the traces. */
#define RELAY_TRACED_NOT_BEGUN UINT32_MAX

/* RELAY_EVENT_LISTS differs whenever one of the structs differs that trace/running.c reads in another process. */
#define RELAY_EVENT_LISTS 0x3230544e45564552ull /* "REVENT02", little-endian */

/*
 * This library's own page, which has the size of the pages of objects, and the heads of its lists of events. trace/running.c
 * reads the lists in other processes, where it finds them behind a mapping of the control file's first page.
 */
struct relay_traced_own {
	union {
		struct relay_trace_page page;
		char bytes[RELAY_TRACE_PAGE_BYTES];
	};
	uint64_t magic; /* RELAY_EVENT_LISTS */
	const char *program;
	struct relay_trace_object *objects;
	struct relay_declared *declared; /* events that were declared at run time */
};
extern struct relay_traced_own relay_traced_own __attribute__((visibility("hidden")));

/* Add an object, or remove it when it is unloaded; add an event that was declared at run time. */
void relay_objects_add(struct relay_trace_object *object);
void relay_objects_remove(const struct relay_trace_object *object);
void relay_objects_add_declared(struct relay_declared *declared);

/* Call act(event, arg) for each event of all objects, and for each event that was declared at run time. */
void relay_objects_each_event(void (*act)(struct relay_trace_event *event, void *arg), void *arg);

/*
 * Show an object's tracepoints the control file's first page, by mapping it over the object's page; or, while early
 * events are written, store a copy there in which RELAY_EARLY is active, too.
 *
 * control    NULL: there is no control file yet
 * waiting    the generation to store in the copy; 0: no early events are written
 */
void relay_object_show(struct relay_trace_object *object, const struct relay_traces *control, uint64_t waiting);

/* The same for all objects and for relay_traced_own. */
void relay_objects_show(const struct relay_traces *control, uint64_t waiting);

#endif
