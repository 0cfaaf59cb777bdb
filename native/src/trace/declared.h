/* SPDX-License-Identifier: MIT */
/* All declarations of events in this process, with their numbers. Callers hold relay_trace_lock(). */
#ifndef RELAYFS_TRACE_DECLARED_H
#define RELAYFS_TRACE_DECLARED_H

#include <relayfs/trace_store.h>

/* Numbers of declarations begin with 1; 0 is unused. */
enum { RELAY_N_NUMBERS = RELAY_TRACE_ID_MAX + 2 };

struct relay_declared {
	struct relay_trace_event
	    event;                   /* a copy; an event declared at run time is written through it, so its id is set */
	uint64_t number;             /* less than RELAY_N_NUMBERS */
	struct relay_declared *next; /* in the list of events that were declared at run time */
	struct relay_declared *other; /* in the list of those with the same hash */
};

/* Return the declaration that is equal to `event`; if there is none, add a copy. It is never freed, because a library that
 * is loaded again must get the same number. NULL and errno: ENOMEM; ENOSPC: there are RELAY_TRACE_ID_MAX + 1 others. */
struct relay_declared *relay_declared_get(const struct relay_trace_event *event);

#endif
