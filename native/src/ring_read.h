/* SPDX-License-Identifier: MIT */
#ifndef RELAYFS_RING_READ_H
#define RELAYFS_RING_READ_H

#include "ring_map.h"

/* What has been consumed, and missed so far, as the next reader will find it. 0, or -EBADMSG. */
int relay_ring_counts(const struct relay_ring *ring, struct relay_ring_counts *counts);

#endif
