/* SPDX-License-Identifier: MIT */
/* A thread that looks for a mount, and for the trace of early events. */
#ifndef RELAYFS_TRACE_WAIT_H
#define RELAYFS_TRACE_WAIT_H

/* Begin it. It ends once relay_traced_waits() is false. Under relay_trace_lock(). */
void relay_trace_wait(void);

#endif
