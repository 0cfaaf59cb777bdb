/* SPDX-License-Identifier: MIT */
/* Events that a program declares at run time: copies, which stay. */
#ifndef RELAYFS_DECLARED_H
#define RELAYFS_DECLARED_H

#include <relayfs/trace_event.h>

struct relay_declared {
	struct relay_trace_event event;
	struct relay_declared *next;
};

/* The one of a list that declares the same; NULL: none. */
struct relay_declared *relay_declared_find(struct relay_declared *list, const struct relay_trace_event *event);

/* In one piece of memory. NULL: there is none. */
struct relay_declared *relay_declared_copy(const struct relay_trace_event *event);

#endif
