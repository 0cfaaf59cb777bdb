/* SPDX-License-Identifier: MIT */
/* Holes: records that their producer has discarded, in a list in shared memory. buffer/holes.c describes it. */
#ifndef RELAYFS_BUFFER_HOLES_H
#define RELAYFS_BUFFER_HOLES_H

#include "buffer/hole_lists.h"

/* Add the record at pos, which still has its claim, to its sub-buffer's list of holes. `record` is its number in the
 * sub-buffer. Returns false if it is too short for struct relay_hole, or the list is full. */
bool relay_hole_push(struct rchan_buf *buf, uint64_t pos, uint64_t length, uint32_t record);

/* Find the first hole at or after pos in pos's sub-buffer, or NULL. Call it after the claims were examined. Returns
 * 0; -EINPROGRESS: the list is longer than one call collects, call again. `holes` keeps the holes of the last
 * sub-buffer. The caller has buf->walking. */
int relay_holes_first(struct rchan_buf *buf, struct relay_holes *holes, uint64_t pos,
                      const struct relay_found_hole **hole);

/* Empty the lists of all sub-buffers, in a reset. */
void relay_holes_clear(struct rchan_buf *buf);

#endif
