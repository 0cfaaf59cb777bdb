/* SPDX-License-Identifier: MIT */
#include "ring/geometry.h"

#include "base/faults.h"
#include "store/options.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>

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

/* The arguments of relay_fault_value() for a field of the geometry `g` at offset `at`. */
#define FIELD(name) at + offsetof(struct relay_ring_geometry, name), g->name, "relay_ring_geometry." #name

static int check_sizes(const struct relay_ring_geometry *g, uint64_t file_bytes, struct relay_ring_layout *layout,
                       uint64_t at, struct relay_faults *faults)
{
	if (!relay_ring_layout_of(g->size, layout))
		return relay_fault_value(faults, FIELD(size), "a power of two, %d to %llu", RELAY_PAGE_BYTES,
		                         RELAY_RING_SIZE_MAX);
	if (g->file_bytes != layout->file_bytes)
		return relay_fault_value(faults, FIELD(file_bytes), "%" PRIu64 ", by size", layout->file_bytes);
	if (g->file_bytes != file_bytes)
		return relay_fault_value(faults, 0, file_bytes, "the size of the file", "%" PRIu64, g->file_bytes);
	if (g->n_claims != RELAY_N_CLAIMS)
		return relay_fault_value(faults, FIELD(n_claims), "%d", RELAY_N_CLAIMS);
	if (g->n_ready != RELAY_RING_N_READY)
		return relay_fault_value(faults, FIELD(n_ready), "%d", RELAY_RING_N_READY);
	if (g->cpu >= g->n_rings)
		return relay_fault_value(faults, FIELD(cpu), "less than n_rings, which is %u", g->n_rings);
	return 0;
}

int relay_ring_check_geometry(const struct relay_ring_geometry *g, uint64_t file_bytes,
                              struct relay_ring_layout *layout, struct relay_faults *faults)
{
	const uint64_t at = file_bytes - RELAY_PAGE_BYTES;
	if (g->magic == RELAY_MAGIC)
		return -EMEDIUMTYPE;
	if (g->magic != RELAY_RING_MAGIC)
		return relay_fault_value(faults, FIELD(magic), "%llu", RELAY_RING_MAGIC);
	if (g->version != RELAY_RING_VERSION)
		return relay_fault_version(faults, FIELD(version), RELAY_RING_VERSION);
	int err = check_sizes(g, file_bytes, layout, at, faults);
	if (!err)
		err = relay_options_check_ring(g, at, faults);
	if (!err && g->scheme == RELAY_ANY_SCHEME)
		err = relay_fault_value(faults, FIELD(scheme), "%d to %d", RELAY_RSEQ, RELAY_LOCKLESS);
	return err;
}
