/* SPDX-License-Identifier: MIT */
/* Declarations of events in TSDL, the language of a CTF trace's metadata. Knows no rings. */
#ifndef RELAYFS_TRACE_TSDL_H
#define RELAYFS_TRACE_TSDL_H

#include <relayfs/trace_event.h>
#include <stdbool.h>

/* May an event be declared so? */
bool relay_tsdl_allows(const struct relay_trace_event *event);

/* Its block, with this id. The length; of what did not fit into `size` bytes, what it would have been. */
size_t relay_tsdl_event(const struct relay_trace_event *event, uint64_t id, char *text, size_t size);

#endif
