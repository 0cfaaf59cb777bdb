/* SPDX-License-Identifier: MIT */
/* A shared library with a tracepoint, that traced.c loads and unloads. */
#include <relayfs/trace.h>

RELAY_TRACE_EVENT(library, loaded, (u64, seq), (x16, address))

void emit_in_library(uint64_t n);

void emit_in_library(uint64_t n)
{
	uint64_t seq;

	for (seq = 0; seq < n; seq++)
		trace_library_loaded(seq, (uint16_t)(uintptr_t)&seq);
}
