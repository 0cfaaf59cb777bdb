/* SPDX-License-Identifier: MIT */
/* What the tests of traces in a store have in common. */
#ifndef A_TRACE_H
#define A_TRACE_H

#include "check.h"

#include <relayfs/trace_store.h>

static inline struct relay_trace a_trace(uint32_t buffers)
{
	struct relay_trace trace = {.id = 7,
	                            .is_started = 1,
	                            .clock = RELAY_MONO,
	                            .buffers = buffers,
	                            .subbuf_size = 4096,
	                            .n_subbufs = 4,
	                            .made = {.ticks = 1, .mono_ns = 2, .real_ns = 3},
	                            .boot = "boot",
	                            .name = "t",
	                            .filter = "pid:1,uid:2",
	                            .rules = "+a:*\n-b:*\n"};
	return trace;
}

#endif
