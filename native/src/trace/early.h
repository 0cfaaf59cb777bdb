/* SPDX-License-Identifier: MIT */
/* Events of before their trace is there: what $RELAYFS_TRACE_EARLY asks for, and where they wait. */
#ifndef RELAYFS_TRACE_EARLY_H
#define RELAYFS_TRACE_EARLY_H

#include "trace/find.h"

enum {
	RELAY_EARLY = RELAY_N_TRACES, /* the place of what waits for its trace, behind those of the control file */
	RELAY_N_TRACINGS
};

/* The id in the first line of .events of a process whose trace is not there yet; the server replaces it. */
#define RELAY_TRACE_NOT_YET UINT64_MAX

/* Understand "NAME,subbuf_size=..,n_subbufs=..,mode=..". false: it is no such text, or the machine has no boot id. */
bool relay_early_parse(const char *wish, struct relay_trace *trace);

/*
 * Where a process's directory for such events is to be made: the home's own store or, if that is another user's or there is none
 * yet, this user's default store. Makes what is missing. 0, and early->store is "STORE/.early"; or -errno.
 */
int relay_early_home(const struct relay_trace_home *home, const struct relay_trace *trace,
                     struct relay_trace_home *early);

/*
 * Copy a process's directory, to which nobody writes any more, into another store, and remove it there.
 *
 * from   "STORE/.early/NAME/PROCESS-PID"
 * early  where it is to be, of relay_early_home()
 *
 * 0; or -errno, and it is still where it was.
 */
int relay_early_carry(const char *from, const struct relay_trace_home *early, const struct relay_trace *trace);

#endif
