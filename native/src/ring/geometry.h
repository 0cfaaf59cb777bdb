/* SPDX-License-Identifier: MIT */
/* The layout of a ring's memory file, and the check of its geometry. */
#ifndef RELAYFS_RING_GEOMETRY_H
#define RELAYFS_RING_GEOMETRY_H

#include <relayfs/ring_layout.h>
#include <relayfs/ring_store.h>
#include <stdbool.h>

/* Offsets in the file, in bytes. */
struct relay_ring_layout {
	uint64_t ready_at, claims_at, state_at, file_bytes;
};

/* Compute the offsets for a ring size in bytes. False: the size is not allowed. */
bool relay_ring_layout_of(uint64_t size, struct relay_ring_layout *layout);

/*
 * Check the geometry of a ring whose file has `bytes`. 0, and the offsets of its parts; -EBADMSG: it is not a ring's;
 * -EMEDIUMTYPE: it is a relay buffer's; -EPROTO: it has another version.
 */
int relay_ring_check_geometry(const struct relay_ring_geometry *geometry, uint64_t file_bytes,
                              struct relay_ring_layout *layout);

#endif
