/* SPDX-License-Identifier: MIT */
/* Declarations of events in TSDL, the language of a CTF trace's metadata. */
#ifndef RELAYFS_TRACE_TSDL_H
#define RELAYFS_TRACE_TSDL_H

#include <relayfs/trace_event.h>
#include <stdbool.h>

enum { RELAY_DECLARATION_BYTES = 16384 }; /* room for the declaration of an event with 64 fields and long names */

/* The most fields of an event, labels of an enum, and bytes of a name. */
enum { RELAY_FIELDS_MAX = 64, RELAY_LABELS_MAX = 256, RELAY_NAME_MAX = 127 };

/* True if the event's names, level, field types and labels are allowed in a declaration. */
bool relay_tsdl_allows(const struct relay_trace_event *event);

/* Store the declaration of an event, with this id, in `text`. Returns its length, like snprintf(3) also if it does not fit. */
size_t relay_tsdl_event(const struct relay_trace_event *event, uint64_t id, char *text, size_t size);

#endif
