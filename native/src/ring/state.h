/* SPDX-License-Identifier: MIT */
/* What a ring has to give, for callers that wait or count. The rest of ring/state.c is declared in <relayfs/ring_store.h>. */
#ifndef RELAYFS_RING_STATE_H
#define RELAYFS_RING_STATE_H

#include "ring/consumer.h"

/* Copy what has been consumed and missed so far, as the next reader will find it, and check it. 0 or -EBADMSG. */
int relay_ring_counts(struct relay_ring *ring, struct relay_ring_counts *counts);

/* Is the memory that of a ring still? 0 or -EBADMSG: it was truncated. */
int relay_ring_check_magic(struct relay_ring *ring);

/* How often to look again when a consumer has moved. */
enum { RELAY_RING_MOVE_TRIES = 200 };

#endif
