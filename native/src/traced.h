/* SPDX-License-Identifier: MIT */
/* What this process knows of the traces; trace.c keeps it. */
#ifndef RELAYFS_TRACED_H
#define RELAYFS_TRACED_H

#include "tracing.h"

enum {
	RELAY_EARLY = RELAY_N_TRACES, /* the place of what is traced before there is a mount */
	RELAY_N_TRACINGS
};

/* Where a channel is of the store whose traces are ours. false: there is none yet, or no memory. */
bool relay_traced_place(struct relay_place *place, const char *channel);

/* relay_trace_page.log, as it is now. */
uint32_t relay_traced_log(void);

/* --- for trace_wait.c --- */

/* From now on the traces of this control file are ours; both become the library's. `early`, if it is not NULL, is what was
 * written before, which has become part of the trace of that slot. */
void relay_traced_connect(const struct relay_trace_home *home, struct relay_traces *control, unsigned slot,
                          struct relay_tracing *early);

/* Until then all events go there. Under relay_trace_lock(). */
void relay_traced_begin_early(struct relay_tracing *early);

/* Have a thread look for a mount. Under relay_trace_lock(). */
void relay_trace_wait(void);

#endif
