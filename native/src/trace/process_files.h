/* SPDX-License-Identifier: MIT */
/* The files .state and .objects of this process's directory in a trace. */
#ifndef RELAYFS_TRACE_PROCESS_FILES_H
#define RELAYFS_TRACE_PROCESS_FILES_H

#include "trace/writer.h"

/* Write a state (trace/states.h) to .state; wants: whether the trace chooses its event, otherwise none is there. Does
 * nothing in a directory of several processes. The caller holds relay_trace_lock(). */
void relay_tracing_put_state(struct relay_tracing *tracing, unsigned index, bool wants);

/* Append to .objects what relay_loaded_lines() has in addition. Does nothing in a directory of several processes. The caller
 * holds relay_trace_lock(). */
void relay_tracing_put_objects(struct relay_tracing *tracing);

/* The same, and from now on also when this process begins a sub-buffer. */
void relay_tracing_follow_objects(struct relay_tracing *tracing);

#endif
