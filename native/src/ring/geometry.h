/* SPDX-License-Identifier: MIT */
/* How the parts of a ring lie in its memory file, and what a ring can be like. */
#ifndef RELAYFS_RING_GEOMETRY_H
#define RELAYFS_RING_GEOMETRY_H

#include <relayfs/ring_layout.h>
#include <relayfs/ring_store.h>
#include <stdbool.h>

/* Offsets in the file, in bytes. */
struct relay_ring_layout {
	uint64_t ready_at, claims_at, state_at, file_bytes;
};

/* False: no ring has so many bytes. */
bool relay_ring_layout_of(uint64_t size, struct relay_ring_layout *layout);

/*
 * Is it the geometry of a ring whose file has so many bytes? 0, and how the parts lie; -EBADMSG: no ring's; -EMEDIUMTYPE: a
 * relay buffer's; -EPROTO: of another version.
 */
int relay_ring_check_geometry(const struct relay_ring_geometry *geometry, uint64_t file_bytes,
                              struct relay_ring_layout *layout);

#endif
