/* SPDX-License-Identifier: MIT */
/* The layout of a ring's memory file, and the check of its geometry. */
#ifndef RELAYFS_RING_GEOMETRY_H
#define RELAYFS_RING_GEOMETRY_H

#include <relayfs/ring_layout.h>
#include <relayfs/ring_store.h>
#include <stdbool.h>

struct relay_faults;

/* Offsets in the file, in bytes. */
struct relay_ring_layout {
	uint64_t ready_at, claims_at, state_at, file_bytes;
};

/* Compute the offsets for a ring size in bytes. Returns false if the size is not allowed. */
bool relay_ring_layout_of(uint64_t size, struct relay_ring_layout *layout);

/*
 * Check the geometry of a ring whose file is file_bytes long, and compute the offsets. Returns 0; -EBADMSG: not that of
 * a ring; -EMEDIUMTYPE: that of a relay buffer; -EPROTO: of another version. The first value that is wrong is added to
 * `faults` (base/faults.h), or NULL.
 */
int relay_ring_check_geometry(const struct relay_ring_geometry *geometry, uint64_t file_bytes,
                              struct relay_ring_layout *layout, struct relay_faults *faults);

#endif
