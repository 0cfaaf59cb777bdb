/* SPDX-License-Identifier: MIT */
#include "buffer/geometry.h"

#include "store/options.h"

#include <errno.h>
#include <relayfs/ring_layout.h>
#include <relayfs/store.h>
#include <relayfs/trace_store.h>

static uint32_t bits_for(uint64_t largest)
{
	return largest ? 64 - (uint32_t)__builtin_clzll(largest) : 0;
}

static uint64_t to_page(uint64_t bytes)
{
	return (bytes + RELAY_PAGE_BYTES - 1) & ~(uint64_t)(RELAY_PAGE_BYTES - 1);
}

bool relay_layout_of(uint64_t subbuf_size, uint64_t n_subbufs, struct relay_layout *layout)
{
	if (subbuf_size == 0 || subbuf_size > RELAY_SUBBUF_SIZE_MAX || n_subbufs == 0 ||
	    n_subbufs > RELAY_N_SUBBUFS_MAX || subbuf_size > RELAY_DATA_BYTES_MAX / n_subbufs)
		return false;
	layout->subbufs_at = to_page(subbuf_size * n_subbufs);
	layout->claims_at = to_page(layout->subbufs_at + 2 * n_subbufs * sizeof(struct relay_subbuf));
	layout->control_at = to_page(layout->claims_at + RELAY_N_CLAIMS * sizeof(struct relay_claim));
	layout->file_bytes = layout->control_at + RELAY_PAGE_BYTES;
	layout->offset_bits = bits_for(subbuf_size);
	layout->index_bits = bits_for(n_subbufs - 1);
	return true;
}

uint64_t relay_buf_file_bytes(uint64_t subbuf_size, uint64_t n_subbufs)
{
	struct relay_layout layout;
	return relay_layout_of(subbuf_size, n_subbufs, &layout) ? layout.file_bytes : 0;
}

bool relay_reserves_fit(uint64_t subbuf_size, uint64_t start, uint64_t end, uint64_t channel_start, uint32_t times)
{
	return start + end + channel_start + (times ? sizeof(struct relay_timed_head) : 0) < subbuf_size;
}

bool relay_format_fits(uint32_t format, uint32_t timestamp, uint64_t start_reserve, uint32_t mode)
{
	return format == RELAY_STREAM || (format == RELAY_PACKETS && timestamp != RELAY_NO_TIMESTAMP &&
	                                  start_reserve == sizeof(struct relay_packet) && mode != RELAY_CALLBACK);
}

bool relay_times_fit(uint32_t times, uint32_t format, uint32_t mode, uint32_t reserve)
{
	return times == RELAY_NO_TIMESTAMP ||
	       (format == RELAY_STREAM && mode != RELAY_CALLBACK && reserve == RELAY_RESERVE_COMMIT);
}

int relay_check_geometry(const struct relay_geometry *geometry, uint64_t file_bytes, struct relay_layout *layout)
{
	if (geometry->magic != RELAY_MAGIC)
		return geometry->magic == RELAY_RING_MAGIC ? -EMEDIUMTYPE : -EBADMSG;
	if (geometry->version != RELAY_LAYOUT_VERSION)
		return -EPROTO;
	if (!relay_layout_of(geometry->subbuf_size, geometry->n_subbufs, layout) || layout->file_bytes != file_bytes ||
	    geometry->file_bytes != file_bytes || geometry->n_claims != RELAY_N_CLAIMS ||
	    !relay_options_allow(geometry) ||
	    !relay_reserves_fit(geometry->subbuf_size, geometry->start_reserve, geometry->end_reserve,
	                        geometry->channel_start_reserve, geometry->times) ||
	    !relay_times_fit(geometry->times, geometry->format, geometry->mode, geometry->reserve) ||
	    (geometry->times && geometry->timestamp != geometry->times) ||
	    !relay_format_fits(geometry->format, geometry->timestamp, geometry->start_reserve, geometry->mode) ||
	    geometry->cpu >= geometry->n_buffers || geometry->scheme == RELAY_ANY_SCHEME)
		return -EBADMSG;
	return 0;
}
