/* SPDX-License-Identifier: MIT */
/* Declarations of events in .events, and their ids where several processes declare there. */
#ifndef RELAYFS_TRACE_EVENT_IDS_H
#define RELAYFS_TRACE_EVENT_IDS_H

#include <relayfs/trace_event.h>
#include <stddef.h>

enum {
	RELAY_EVENTS_BYTES = 16 << 20,  /* as long as .events may become */
	RELAY_DECLARATION_BYTES = 16384 /* the longest name and 64 fields of the longest names */
};

/* Append one declaration. 0 or -errno. */
int relay_events_append(int fd, const char *text, size_t length);

struct relay_event_ids;

/* fd: of .events, open for reading and for appending; it stays the caller's. NULL: no memory. */
struct relay_event_ids *relay_event_ids_new(int fd);
void relay_event_ids_free(struct relay_event_ids *ids);

/* The id of an event, which is declared unless another process has declared the same. Or -ENOSPC: no id is free, or there is
 * no room; -EAGAIN: others were always faster; another -errno. */
int relay_event_ids_get(struct relay_event_ids *ids, const struct relay_trace_event *event);

#endif
