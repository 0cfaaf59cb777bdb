/* SPDX-License-Identifier: MIT */
/* Functions of the library for the control file of traces. Those for servers and tools: <relayfs/trace_store.h>. */
#ifndef RELAYFS_TRACE_CONTROL_FILE_H
#define RELAYFS_TRACE_CONTROL_FILE_H

#include <relayfs/trace_store.h>
#include <stdbool.h>

/* Return the first page of the mapped control file, valid until relay_traces_close(). */
struct relay_trace_page *relay_traces_page(const struct relay_traces *traces);

/* Return the inode number of the PID namespace of the control file's last server, or of this process. 0: unknown. */
uint64_t relay_traces_pid_ns(const struct relay_traces *traces);
uint64_t relay_pid_ns(void);

/* Add to the count of events that programs have lost because they got no buffers in the trace with this id. To
 * subtract, after the events were counted in a buffer, pass the negative number. false: the count did not change,
 * because traces is NULL, this process cannot map the counts, or another trace has the slot. */
bool relay_traces_note_lost(struct relay_traces *traces, unsigned slot, uint64_t id, uint64_t records);

#endif
