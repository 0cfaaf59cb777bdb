/* SPDX-License-Identifier: MIT */
/* Loading a buffer's head, the latch {position, records and owner} of its writers; and the number of
 * records that were refused. */
#ifndef RELAYFS_BUFFER_HEAD_H
#define RELAYFS_BUFFER_HEAD_H

#include "buffer/buffer.h"

/* The number of records that were refused, for all reasons. A counter that changes during each try counts as 0. */
uint64_t relay_lost(const struct rchan_buf *buf);

/* The same for each reason: the buffer was full, the record too large, the buffer disabled. */
void relay_lost_by_cause(const struct rchan_buf *buf, uint64_t records[3]);

/* Load head as it was at one moment. Returns 0; -EBADMSG: it never came to rest, or is not a valid position. *first
 * is the position, *second has the record count and the owner. */
int relay_head(const struct rchan_buf *buf, uint64_t *first, uint64_t *second);

/* As relay_head(), but -EBADMSG leaves a note in buf->damage. */
int relay_head_checked(struct rchan_buf *buf, uint64_t *first, uint64_t *second);

#endif
