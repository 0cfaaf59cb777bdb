/* SPDX-License-Identifier: MIT */
/* Which processes and events a trace selects: struct relay_trace in <relayfs/trace_store.h>, `filter` and `rules`. */
#ifndef RELAYFS_TRACE_SELECTION_H
#define RELAYFS_TRACE_SELECTION_H

#include <relayfs/trace_store.h>
#include <stdbool.h>

/* pid: in the PID namespace of the file server; uid: the effective one */
bool relay_selects_process(const struct relay_trace *trace, const char *program, uint32_t pid, uint32_t uid);

/* event: "provider:name"; *condition receives the number of the condition of the rule that decides; -1: it has none. */
bool relay_selects_event(const struct relay_trace *trace, const char *event, int *condition);

#endif
