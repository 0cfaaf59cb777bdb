/* SPDX-License-Identifier: MIT */
/* What readers can get from a ring, for callers that wait or show statistics. ring/state.c also defines functions
 * of <relayfs/ring_store.h>. */
#ifndef RELAYFS_RING_STATE_H
#define RELAYFS_RING_STATE_H

#include "ring/consumer.h"

/* Copy the counts of consumed and missed records, as the next reader will see them, and check them. Returns 0 or
 * -EBADMSG. */
int relay_ring_counts(struct relay_ring *ring, struct relay_ring_counts *counts);

/* Check the ring's magic number. Returns 0; -EBADMSG: the file was truncated. */
int relay_ring_check_magic(struct relay_ring *ring);

/* How often to try again when a consumer has advanced meanwhile. */
enum { RELAY_RING_MOVE_TRIES = 200 };

#endif
