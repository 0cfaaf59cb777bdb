/* SPDX-License-Identifier: MIT */
/* Copies of declared events, with all that they point to. */
#ifndef RELAYFS_TRACE_EVENT_COPY_H
#define RELAYFS_TRACE_EVENT_COPY_H

#include <relayfs/trace_event.h>

/* The bytes that a copy takes besides its struct relay_trace_event. */
size_t relay_event_copy_bytes(const struct relay_trace_event *event);

/* Copy an event, but not its id and `wanted`. room: memory of so many bytes, aligned as for malloc(3). */
void relay_event_copy(struct relay_trace_event *to, void *room, const struct relay_trace_event *event);

#endif
