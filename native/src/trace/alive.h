/* SPDX-License-Identifier: MIT */
/* Whether a process takes part in a trace: it holds a lock on the .events of its directory. */
#ifndef RELAYFS_TRACE_ALIVE_H
#define RELAYFS_TRACE_ALIVE_H

#include <stdbool.h>

enum { RELAY_TRACE_LINE_BYTES = 1024 }; /* of the first line of .events, at most */

/* Lock .events, for reading: held as long as this process lives, or until it closes any descriptor of the file. 0 or -errno. */
int relay_trace_lock_events(int fd);

/*
 * Has a process been told of the directory of this .events, and not had the time to lock it? A process declares its events
 * after it has locked it, so a directory for one process that has more than its first line is nobody's any more.
 */
bool relay_trace_is_told(int fd);

#endif
