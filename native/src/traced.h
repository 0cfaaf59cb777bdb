/* SPDX-License-Identifier: MIT */
/* What this process knows of the traces; trace.c keeps it. */
#ifndef RELAYFS_TRACED_H
#define RELAYFS_TRACED_H

#include "tracing.h"

enum {
	RELAY_EARLY = RELAY_N_TRACES, /* the place of what waits for its trace: trace_early.h */
	RELAY_N_TRACINGS
};

/* Where a channel is of the store whose traces are ours. false: there is none yet, or no memory. */
bool relay_traced_place(struct relay_place *place, const char *channel);

/* relay_trace_page.log, as it is now. */
uint32_t relay_traced_log(void);

/* --- for trace_wait.c --- */

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

/* Have a thread look for a mount, and for the trace of early events. Under relay_trace_lock(). */
void relay_trace_wait(void);

#endif
