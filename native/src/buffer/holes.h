/* SPDX-License-Identifier: MIT */
/* Records that their producer discarded: a list in the memory they would have filled. buffer/holes.c tells how. */
#ifndef RELAYFS_BUFFER_HOLES_H
#define RELAYFS_BUFFER_HOLES_H

#include "buffer/hole_lists.h"

/* Make a record that is still claimed a hole: `record` is its number in its sub-buffer. false: it is too short, or
 * there are too many. */
bool relay_hole_push(struct rchan_buf *buf, uint64_t pos, uint64_t length, uint32_t record);

/* The first hole at or after pos in its sub-buffer, or NULL. Call after looking at the claims. 0; -EINPROGRESS: they are
 * more than one call collects, call again. `holes` keeps those of the sub-buffer that was looked at last. */
int relay_holes_first(struct rchan_buf *buf, struct relay_holes *holes, uint64_t pos,
                      const struct relay_found_hole **hole);

/* Forget all, after a reset. */
void relay_holes_clear(struct rchan_buf *buf);

#endif
