/* SPDX-License-Identifier: MIT */
/*
 * Sessions. A process that cannot open files of the store, or may not write files of that size, has the server make its
 * directory in a trace and write .events there. The session is an open descriptor of MNT/.traces/join; the server
 * regards the process as a writer of the directory until the descriptor is closed.
 */
#ifndef RELAYFS_TRACE_JOIN_H
#define RELAYFS_TRACE_JOIN_H

#include <relayfs/trace_store.h>
#include <stdbool.h>
#include <sys/types.h>

/* Open a session for a trace. program: the name of this program. `name` receives the name of the directory in the
 * trace. Returns a descriptor or -errno. */
int relay_session_open(const char *mount, const char *trace, const char *program, char name[RELAY_TRACE_NAME_BYTES]);

/* Send a request, one of those in join.c. 0 or -errno: -EMSGSIZE: it is too long; or the server's answer. */
int relay_session_ask(int session, const char *text, size_t length);

/* Return the id that the server has given to the event of the last declaration, or -errno. */
int relay_session_declared(int session);

/* True if the server that opened the session still runs. */
bool relay_session_is_served(int session);

/* True if RLIMIT_FSIZE allows files of so many bytes; a longer write would raise SIGXFSZ. */
bool relay_may_write(uint64_t bytes);

#endif
