/* SPDX-License-Identifier: MIT */
/* The events of this process: of its program and of each library, where they lie together, and those declared at run time. Each
 * such object has a page on which its tracepoints look. Under relay_trace_lock(). */
#ifndef RELAYFS_TRACE_OBJECTS_H
#define RELAYFS_TRACE_OBJECTS_H

#include "trace/declared.h"

#include <relayfs/trace_store.h>

/* relay_trace_page.log before anybody has looked for the traces. */
#define RELAY_TRACED_NOT_BEGUN UINT32_MAX

/* This library's own look at the control file's first page. */
union relay_traced_page {
	struct relay_trace_page page;
	char bytes[RELAY_TRACE_PAGE_BYTES];
};
extern union relay_traced_page relay_traced_own __attribute__((visibility("hidden")));

void relay_objects_add(struct relay_trace_object *object);
void relay_objects_remove(const struct relay_trace_object *object);
void relay_objects_add_declared(struct relay_declared *declared);
void relay_objects_each_event(void (*act)(struct relay_trace_event *event, void *arg), void *arg);

/*
 * Have tracepoints look at the control file's first page, where there is one; or, while events wait for their trace, at a copy.
 *
 * waiting    the generation that the copy shows; 0: no events wait
 */
void relay_object_show(struct relay_trace_object *object, const struct relay_traces *control, uint64_t waiting);
void relay_objects_show(const struct relay_traces *control, uint64_t waiting); /* of all, and of this library itself */

#endif
