/* SPDX-License-Identifier: MIT */
/* Which store's traces are this program's. */
#ifndef RELAYFS_TRACE_FIND_H
#define RELAYFS_TRACE_FIND_H

/*
 * STORE of the mount $RELAYFS; else this user's default store, else root's, else that of the first mount of root's or this
 * user's. In it the control file, open for reading, at *fd. NULL: there is none yet.
 */
char *relay_trace_find_store(int *fd);

/* A mount of that store, where this process may ask to join a trace. NULL: there is none. */
char *relay_trace_find_mount(const char *store);

#endif
