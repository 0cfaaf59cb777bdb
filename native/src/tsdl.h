/* SPDX-License-Identifier: MIT */
/* Declarations of events in TSDL, the language of a CTF trace's metadata. Knows no rings. */
#ifndef RELAYFS_TSDL_H
#define RELAYFS_TSDL_H

#include <relayfs/trace_event.h>
#include <stdbool.h>

/* May an event be declared so? */
bool relay_tsdl_allows(const struct relay_trace_event *event);

/* Number it by its declaration: the same in all processes. */
uint64_t relay_tsdl_id(const struct relay_trace_event *event);

/* Append its block to text[length..size). The new length; of what did not fit, what it would have been. */
size_t relay_tsdl_event(const struct relay_trace_event *event, char *text, size_t size, size_t length);

#endif
