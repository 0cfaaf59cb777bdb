/* SPDX-License-Identifier: MIT */
/*
 * A process's part in a trace where the file server does what the process may not do itself: an open MNT/.traces/join. As long as
 * it is open the server counts the process among those that write.
 */
#ifndef RELAYFS_TRACE_JOIN_H
#define RELAYFS_TRACE_JOIN_H

#include <relayfs/trace_store.h>
#include <stdbool.h>
#include <sys/types.h>

/* Ask to take part; `name` receives the directory's name. A descriptor, or -errno. */
int relay_session_open(const char *mount, const char *trace, const char *program, char name[RELAY_TRACE_NAME_BYTES]);

/* Ask for something: a declaration, for example. 0 or -errno. */
int relay_session_ask(int session, const char *text, size_t length);

/* The id that the server gave the event that was declared last: or -errno. */
int relay_session_declared(int session);

/* Does its server live? */
bool relay_session_is_served(int session);

/* May this process write so many bytes to a file, or make one of that size? If not, it would be sent SIGXFSZ. */
bool relay_may_write(uint64_t bytes);

#endif
