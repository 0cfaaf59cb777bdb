/* SPDX-License-Identifier: MIT */
#include "ring/geometry.h"

#include "store/options.h"

#include <errno.h>

bool relay_ring_layout_of(uint64_t size, struct relay_ring_layout *layout)
{
	if (size < RELAY_PAGE_BYTES || size > RELAY_RING_SIZE_MAX || size & (size - 1))
		return false;
	layout->ready_at = RELAY_RING_DATA_AT + 2 * size;
	layout->claims_at = layout->ready_at + RELAY_RING_N_READY * sizeof(uint64_t) + RELAY_RING_CLAIMS_GAP;
	layout->state_at = layout->claims_at + RELAY_N_CLAIMS * sizeof(struct relay_ring_claim) + RELAY_PAGE_BYTES -
	                   RELAY_RING_CLAIMS_GAP;
	layout->file_bytes = layout->state_at + RELAY_PAGE_BYTES;
	return true;
}

uint64_t relay_ring_file_bytes(uint64_t ring_size)
{
	struct relay_ring_layout layout;
	return relay_ring_layout_of(ring_size, &layout) ? layout.file_bytes : 0;
}

int relay_ring_check_geometry(const struct relay_ring_geometry *geometry, uint64_t file_bytes,
                              struct relay_ring_layout *layout)
{
	if (geometry->magic != RELAY_RING_MAGIC)
		return geometry->magic == RELAY_MAGIC ? -EMEDIUMTYPE : -EBADMSG;
	if (geometry->version != RELAY_RING_VERSION)
		return -EPROTO;
	if (!relay_ring_layout_of(geometry->size, layout) || layout->file_bytes != file_bytes ||
	    geometry->file_bytes != file_bytes || geometry->n_claims != RELAY_N_CLAIMS ||
	    geometry->n_ready != RELAY_RING_N_READY || !relay_options_allow_ring(geometry) || geometry->n_rings == 0 ||
	    geometry->cpu >= geometry->n_rings || geometry->scheme == RELAY_ANY_SCHEME)
		return -EBADMSG;
	return 0;
}
