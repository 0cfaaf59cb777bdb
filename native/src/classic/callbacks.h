/* SPDX-License-Identifier: MIT */
/* Calling the callbacks of <relayfs/classic.h> when a sub-buffer ends, is delivered, and begins. */
#ifndef RELAYFS_CLASSIC_CALLBACKS_H
#define RELAYFS_CLASSIC_CALLBACKS_H

#include "channel/ids.h"

/* buf->begin of a channel's one buffer. */
relay_subbuf_start_function relay_subbuf_start_by_callback;

/* A record at pos has been committed. */
void relay_events_committed(const struct relay_classic *classic, uint64_t pos, size_t length);

/* Return the number of sub-buffers that count as consumed. */
uint64_t relay_bufs_consumed(const struct rchan_buf *buf);

#endif
