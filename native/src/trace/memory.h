/* SPDX-License-Identifier: MIT */
/* How much memory the buffers of a trace take together, and who gives way when they are to take more. */
#ifndef RELAYFS_TRACE_MEMORY_H
#define RELAYFS_TRACE_MEMORY_H

#include <relayfs/trace_store.h>

/*
 * See to it that a process's buffers find room in a trace, whose directory is `dir`, open as dir_fd. The process's own hidden
 * directory is there already, without buffers, and counts: so do those of others who are at it.
 *
 * The dead give way: first those of whom everything is consumed, then those that are dead for longest, of whom a line in
 * DIR/.given-up says how much is lost, "PROCESS-PID RECORDS". 0; -ENOSPC: there is no room all the same.
 */
int relay_trace_make_room(int dir_fd, const char *dir, const struct relay_trace *trace);

#endif
