/* SPDX-License-Identifier: MIT */
/* In <relayfs/trace.h> an event has a list of its structs (relay_trace_event.structs), each with its fields. The rest of the
 * library needs one list of all fields, in which the field x of a struct `at` has the name at.x. */
#ifndef RELAYFS_TRACE_FLAT_H
#define RELAYFS_TRACE_FLAT_H

#include <relayfs/trace_event.h>

/* Return a copy, to be freed with free(), of an event that has `structs`: with one list of all fields, and without structs.
 * The copy refers to texts of the event. NULL: there are more than RELAY_FIELDS_MAX fields, one is in more than
 * RELAY_TRACE_DEPTH_MAX structs, a name is longer than RELAY_NAME_MAX, or no memory. */
struct relay_trace_event *relay_event_flat(const struct relay_trace_event *event);

#endif
