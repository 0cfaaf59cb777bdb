/* SPDX-License-Identifier: MIT */
/* The declarations of events that this process has had, each with its number. Under relay_trace_lock(). */
#ifndef RELAYFS_TRACE_DECLARED_H
#define RELAYFS_TRACE_DECLARED_H

#include <relayfs/trace_event.h>

struct relay_declared {
	struct relay_trace_event event; /* a copy; with an id if it was declared at run time: then programs write it */
	uint64_t number;                /* from 1 */
	struct relay_declared *next;    /* of those that were declared at run time */
	struct relay_declared *other;   /* of the same hash */
};

/* What declares the same as `event`; a copy is made of the first. It stays, because a library that is loaded again must get
 * the same number. NULL and errno: ENOMEM; ENOSPC there are RELAY_TRACE_ID_MAX + 1 others. */
struct relay_declared *relay_declared_get(const struct relay_trace_event *event);

#endif
