/* SPDX-License-Identifier: MIT */
/* The mapped control file, for those who show its first page to programs. */
#ifndef RELAYFS_TRACE_CONTROL_FILE_H
#define RELAYFS_TRACE_CONTROL_FILE_H

#include <relayfs/trace_store.h>
#include <stdbool.h>

/* Its first page, as long as it is open. */
struct relay_trace_page *relay_traces_page(const struct relay_traces *traces);

/* In which PID namespace its server is, or was last; in which this process is. An inode; 0: unknown. */
uint64_t relay_traces_pid_ns(const struct relay_traces *traces);
uint64_t relay_pid_ns(void);

/* Count events of a trace as lost for want of buffers; a count that has found its way into a buffer is taken back by adding its
 * negative. false: nobody can be told, because this process maps the counts not at all, or not of this trace. */
bool relay_traces_note_lost(struct relay_traces *traces, unsigned slot, uint64_t id, uint64_t records);

#endif
