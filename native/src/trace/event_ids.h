/* SPDX-License-Identifier: MIT */
/* Appending declarations to .events, and the ids of events in a directory where several processes declare events. */
#ifndef RELAYFS_TRACE_EVENT_IDS_H
#define RELAYFS_TRACE_EVENT_IDS_H

#include <relayfs/trace_event.h>
#include <stddef.h>

enum { RELAY_EVENTS_BYTES = 16 << 20 }; /* maximum length of .events */

/* Append one declaration to the open .events. 0 or -errno: -EFBIG: this process may not write so long a file
 * (RLIMIT_FSIZE); -ENOSPC: only a part was written. */
int relay_events_append(int fd, const char *text, size_t length);

struct relay_event_ids;

/* Allocate the state for one .events. fd: opened for reading and appending; it stays the caller's. NULL: no memory. */
struct relay_event_ids *relay_event_ids_new(int fd);
void relay_event_ids_free(struct relay_event_ids *ids);

/* Return the id of an event in .events; append its declaration if .events does not have it. -ENOSPC: no id is
 * free, or .events is full; -EAGAIN: other processes have taken each id that this process has tried; -EINVAL: the
 * declaration is too long; -ENOMEM; or as read(2) and write(2). */
int relay_event_ids_get(struct relay_event_ids *ids, const struct relay_trace_event *event);

#endif
