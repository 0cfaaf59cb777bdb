/* SPDX-License-Identifier: MIT */
#ifndef RELAYFS_RING_CONSUME_H
#define RELAYFS_RING_CONSUME_H

#include "ring/ring.h"

/* What has been consumed, and missed so far, as the next reader will find it. All that can be checked of it is. 0, or
 * -EBADMSG. */
int relay_ring_counts(struct relay_ring *ring, struct relay_ring_counts *counts);

/* Where consumers are, to tell whether one has moved meanwhile: then what was read of them and of producers does not belong
 * together, and is no sign of damage. */
struct relay_ring_moment {
	uint32_t current;
	uint64_t position;
};
struct relay_ring_moment relay_ring_moment(const struct relay_ring *ring);
bool relay_ring_has_moved(const struct relay_ring *ring, struct relay_ring_moment since);

/* Has the record at pos been overwritten, or may have been? */
bool relay_ring_is_lapped(const struct relay_ring *ring, uint64_t pos);

/* Is the memory that of a ring still? 0 or -EBADMSG: it was truncated. */
int relay_ring_check_magic(struct relay_ring *ring);

/* How often to look again when a consumer has moved. */
enum { RELAY_RING_MOVE_TRIES = 200 };

#endif
