/* SPDX-License-Identifier: MIT */
/* Finding the store or mount whose traces this process writes to. */
#ifndef RELAYFS_TRACE_FIND_H
#define RELAYFS_TRACE_FIND_H

#include <relayfs/trace_store.h>
#include <stdbool.h>

struct relay_trace_home {
	char *store;     /* NULL: it is another user's, so only the mount's files can be used */
	char *mount;     /* NULL: the store has no server */
	uint64_t pid_ns; /* the server's PID namespace, relay_traces_pid_ns() */
};

/*
 * Find the mount $RELAYFS, else the first mount whose server is root's or this user's, else this user's default store
 * without a server, and map the control file: *traces. false: none of them has a control file that can be mapped.
 */
bool relay_trace_find(struct relay_trace_home *home, struct relay_traces **traces);

/* Return the pid of this process in the server's PID namespace, or getpid() if the server cannot see this process.
 * Sends a request to the server if the two namespaces differ. */
uint32_t relay_trace_pid(const struct relay_trace_home *home);

void relay_trace_home_free(struct relay_trace_home *home);

#endif
