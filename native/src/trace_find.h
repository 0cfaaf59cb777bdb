/* SPDX-License-Identifier: MIT */
/* Where this program's traces are. */
#ifndef RELAYFS_TRACE_FIND_H
#define RELAYFS_TRACE_FIND_H

#include <relayfs/trace_store.h>
#include <stdbool.h>

struct relay_trace_home {
	char *store; /* if it is this user's; NULL: it is another user's, of which only the mount is to be used */
	char *mount; /* NULL: nobody serves the store */
};

/*
 * Find the mount $RELAYFS, else the first one of root's or of this user's, else this user's own store, which nobody serves.
 * *traces is its control file. false: there is none yet, or it cannot be mapped.
 */
bool relay_trace_find(struct relay_trace_home *home, struct relay_traces **traces);
void relay_trace_home_free(struct relay_trace_home *home);

#endif
