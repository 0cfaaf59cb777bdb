/* SPDX-License-Identifier: MIT */
/* The offsets of a buffer's parts in its file, and the limits of its parameters. */
#ifndef RELAYFS_BUFFER_GEOMETRY_H
#define RELAYFS_BUFFER_GEOMETRY_H

#include <relayfs/layout.h>
#include <stdbool.h>
#include <stdint.h>

struct relay_faults;

/* The sizes that follow from sub-buffer size and number. */
struct relay_layout {
	uint64_t subbufs_at, claims_at, control_at, file_bytes; /* byte offsets in the file */
	uint32_t offset_bits, index_bits;
};

/* Compute the layout. Returns false if a size or number is not allowed. */
bool relay_layout_of(uint64_t subbuf_size, uint64_t n_subbufs, struct relay_layout *layout);

/* True if the bytes reserved in a sub-buffer leave room for records, and, with `times`, for the head of one. */
bool relay_reserves_fit(uint64_t subbuf_size, uint64_t start, uint64_t end, uint64_t channel_start, uint32_t times);

/* True if format is RELAY_STREAM, or RELAY_PACKETS with a timestamp, room for the packet's header and a
 * mode that packets support. */
bool relay_format_fits(uint32_t format, uint32_t timestamp, uint64_t start_reserve, uint32_t mode);

/* True if `times` is 0, or that of a format, a mode and reservations in which records can have their times. */
bool relay_times_fit(uint32_t times, uint32_t format, uint32_t mode, uint32_t reserve);

/*
 * Check the geometry of a buffer whose file is file_bytes long, and compute its layout. Returns 0; -EBADMSG: not that
 * of a buffer; -EMEDIUMTYPE: that of a ring; -EPROTO: of another version. The first value that is wrong is added to
 * `faults` (base/faults.h), or NULL.
 */
int relay_check_geometry(const struct relay_geometry *geometry, uint64_t file_bytes, struct relay_layout *layout,
                         struct relay_faults *faults);

#endif
