/* SPDX-License-Identifier: MIT */
/* How the parts of a buffer lie in its memory file, and what a buffer can be like. */
#ifndef RELAYFS_BUFFER_GEOMETRY_H
#define RELAYFS_BUFFER_GEOMETRY_H

#include <relayfs/layout.h>
#include <stdbool.h>
#include <stdint.h>

/* The sizes that follow from a geometry. */
struct relay_layout {
	uint64_t subbufs_at, claims_at, control_at, file_bytes; /* byte offsets in the file */
	uint32_t offset_bits, index_bits;
};

/* False: no buffer has so many bytes, or sub-buffers. */
bool relay_layout_of(uint64_t subbuf_size, uint64_t n_subbufs, struct relay_layout *layout);

/* Is room left for records behind what is reserved in a sub-buffer (bytes)? */
bool relay_reserves_fit(uint64_t subbuf_size, uint64_t start, uint64_t end, uint64_t channel_start);

/* Do packets have all that they need? */
bool relay_format_fits(uint32_t format, uint32_t timestamp, uint64_t start_reserve, uint32_t mode);

/*
 * Is it the geometry of a buffer whose file has so many bytes? 0, and how the parts lie; -EBADMSG: no buffer's; -EMEDIUMTYPE:
 * a ring's; -EPROTO: of another version.
 */
int relay_check_geometry(const struct relay_geometry *geometry, uint64_t file_bytes, struct relay_layout *layout);

#endif
