/* SPDX-License-Identifier: MIT */
/* Where this program's traces are. */
#ifndef RELAYFS_TRACE_FIND_H
#define RELAYFS_TRACE_FIND_H

#include <relayfs/trace_store.h>
#include <stdbool.h>

struct relay_trace_home {
	char *store;     /* if it is this user's; NULL: it is another user's, of which only the mount is to be used */
	char *mount;     /* NULL: nobody serves the store */
	uint64_t pid_ns; /* the server's; see trace/control_file.h */
};

/*
 * Find the mount $RELAYFS, else the first one of root's or of this user's, else this user's own store, which nobody serves.
 * *traces is its control file. false: there is none yet, or it cannot be mapped.
 */
bool relay_trace_find(struct relay_trace_home *home, struct relay_traces **traces);
/* Which number this process has in the server's PID namespace; or its own, if the server cannot tell. May ask the server. */
uint32_t relay_trace_pid(const struct relay_trace_home *home);

void relay_trace_home_free(struct relay_trace_home *home);

#endif
