/* SPDX-License-Identifier: MIT */
/* Whether a process writes to a directory of a trace: each such process, or the server for it, holds a lock (fcntl(2),
 * F_RDLCK) on the directory's .events. */
#ifndef RELAYFS_TRACE_ALIVE_H
#define RELAYFS_TRACE_ALIVE_H

#include <stdbool.h>

enum { RELAY_TRACE_LINE_BYTES = 1024 }; /* maximum length of the first line of .events */

/* Lock .events for this process, which releases the lock when it ends or closes any descriptor of the file. 0 or
 * -errno: -EAGAIN or -EACCES: relay_trace_remove_dead() has it locked. */
int relay_trace_lock_events(int fd);

/*
 * True if the directory of this .events may have been offered to a process that has not locked it yet: .events was
 * changed within the last ten seconds, because an offer sets its time of change. If the directory is for one process,
 * .events must also have no more than its first line, because a process declares events after it has taken the lock.
 */
bool relay_trace_is_offered(int fd);

#endif
