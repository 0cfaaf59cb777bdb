/* SPDX-License-Identifier: MIT */
/* The memory that all lists of holes of this process take together. buffer/hole_lists.c tells how it is divided. */
#ifndef RELAYFS_BUFFER_HOLE_LISTS_H
#define RELAYFS_BUFFER_HOLE_LISTS_H

#include "buffer/buffer.h"

struct relay_found_hole {
	uint32_t offset, length, record;
};

/* What follows is called by the thread that walks along the buffer, for one of its two lists. */

/* Make room for as many holes again, or for the first ones. false: there is none now, and the list has been forgotten. */
bool relay_holes_grow(struct rchan_buf *buf, struct relay_holes *holes);

/* The list is in use, or is being collected: others of the same user are forgotten before it. */
void relay_holes_touch(struct relay_holes *holes);

/* Give the memory back. The list is collected anew when a walk meets it again. */
void relay_holes_forget(struct relay_holes *holes);

#endif
