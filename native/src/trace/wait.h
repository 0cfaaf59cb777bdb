/* SPDX-License-Identifier: MIT */
/* A thread of the library that waits for a mount or store with a control file, and for the trace of early events. */
#ifndef RELAYFS_TRACE_WAIT_H
#define RELAYFS_TRACE_WAIT_H

/* Start the thread, which ends when relay_traced_waits() is false. The caller has all signals blocked, and so has the
 * thread. If it cannot be started, this process does not find the traces that appear later. */
void relay_trace_wait(void);

#endif
