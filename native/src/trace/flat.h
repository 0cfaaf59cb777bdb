/* SPDX-License-Identifier: MIT */
/* Events of <relayfs/trace.h> with structs: a list of all fields, as the rest of the library and other languages have it. */
#ifndef RELAYFS_TRACE_FLAT_H
#define RELAYFS_TRACE_FLAT_H

#include <relayfs/trace_event.h>

/* Return a copy, to be freed with free(), of an event that has `structs`; it points to texts of the event. NULL: the fields are too
 * many, lie in too many structs, or have too long names, or no memory. */
struct relay_trace_event *relay_event_flat(const struct relay_trace_event *event);

#endif
