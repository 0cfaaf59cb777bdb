/* SPDX-License-Identifier: MIT */
/* The limit for the memory of all lists of holes (struct relay_holes) in this process. buffer/hole_lists.c describes
 * how the memory is divided. */
#ifndef RELAYFS_BUFFER_HOLE_LISTS_H
#define RELAYFS_BUFFER_HOLE_LISTS_H

#include "buffer/buffer.h"

struct relay_found_hole {
	uint32_t offset, length, record;
};

/* The caller of these functions has buf->walking. */

/* Double the capacity of a list, or make a first one. Returns false if there is no memory for it; the list
 * is then empty and has none. */
bool relay_holes_grow(struct rchan_buf *buf, struct relay_holes *holes);

/* Note that the list is in use, so that other lists of the same user are freed before it. */
void relay_holes_touch(struct relay_holes *holes);

/* Free the list's memory. The list is collected again when a walk needs it. */
void relay_holes_forget(struct relay_holes *holes);

#endif
