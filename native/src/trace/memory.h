/* SPDX-License-Identifier: MIT */
/* The limit for the memory that all buffers of a trace take together (struct relay_trace, memory). */
#ifndef RELAYFS_TRACE_MEMORY_H
#define RELAYFS_TRACE_MEMORY_H

#include <relayfs/trace_store.h>

/*
 * Make sure that the buffers of one more process do not exceed the limit: remove directories of dead processes while
 * they would. First those whose events have all been consumed are removed, then the others, the oldest first; for each
 * of these a line "PROCESS-PID RECORDS" in DIR/.given-up tells how many events are lost.
 *
 * dir, dir_fd    the trace's directory. The hidden directory of the new process exists already, and counts with the size
 *                that it will have, as do those that other processes are making
 *
 * 0; -ENOSPC: the limit would be exceeded even so, or the machine has too little memory.
 */
int relay_trace_make_room(int dir_fd, const char *dir, const struct relay_trace *trace);

#endif
