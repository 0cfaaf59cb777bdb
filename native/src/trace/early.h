/* SPDX-License-Identifier: MIT */
/*
 * Early events: events that a process writes for a trace which does not exist yet, because $RELAYFS_TRACE_EARLY names
 * this trace. The process writes them to a directory in STORE/.early/; when the trace is made, the server moves the
 * directory into it.
 */
#ifndef RELAYFS_TRACE_EARLY_H
#define RELAYFS_TRACE_EARLY_H

#include "trace/find.h"

enum {
	RELAY_EARLY = RELAY_N_TRACES, /* the slot of early events, after the slots of the control file */
	RELAY_N_TRACINGS
};

/* The trace id in the first line of .events in STORE/.early/, which the server replaces. */
#define RELAY_TRACE_NOT_YET UINT64_MAX

/* Parse the value of $RELAYFS_TRACE_EARLY, "NAME,subbuf_size=..,n_subbufs=..,mode=..". false: the name or an option is
 * not allowed, no memory, or the machine has no boot id. */
bool relay_early_parse(const char *value, struct relay_trace *trace);

/*
 * Make the directory "STORE/.early/NAME" for a trace, where STORE is home->store or, if that is NULL, this user's
 * default store. 0: early->store receives "STORE/.early", and the caller frees `early`; or -errno.
 */
int relay_early_home(const struct relay_trace_home *home, const struct relay_trace *trace,
                     struct relay_trace_home *early);

/*
 * Move a directory of early events into another store by copying. No thread may write to it.
 *
 * from   "STORE/.early/NAME/PROCESS-PID"
 * early  of relay_early_home(), in the store into which they are copied
 * trace  of relay_early_parse()
 *
 * 0; or -errno: if copying has failed, `from` is unchanged and there is no copy.
 */
int relay_early_carry(const char *from, const struct relay_trace_home *early, const struct relay_trace *trace);

#endif
