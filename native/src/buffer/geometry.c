/* SPDX-License-Identifier: MIT */
#include "buffer/geometry.h"

#include "base/faults.h"
#include "store/options.h"

#include <errno.h>
#include <inttypes.h>
#include <relayfs/ring_layout.h>
#include <relayfs/store.h>
#include <relayfs/trace_store.h>
#include <stddef.h>

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

/* The arguments of relay_fault_value() for a field of the geometry `g` at offset `at`. */
#define FIELD(name) at + offsetof(struct relay_geometry, name), g->name, "relay_geometry." #name

/* The sizes and numbers. */
static int check_sizes(const struct relay_geometry *g, uint64_t file_bytes, struct relay_layout *layout, uint64_t at,
                       struct relay_faults *faults)
{
	if (g->subbuf_size == 0 || g->subbuf_size > RELAY_SUBBUF_SIZE_MAX)
		return relay_fault_value(faults, FIELD(subbuf_size), "1 to %llu", RELAY_SUBBUF_SIZE_MAX);
	if (!relay_layout_of(g->subbuf_size, g->n_subbufs, layout))
		return relay_fault_value(faults, FIELD(n_subbufs), "1 to %llu, of this subbuf_size",
		                         RELAY_DATA_BYTES_MAX / g->subbuf_size);
	if (g->file_bytes != layout->file_bytes)
		return relay_fault_value(faults, FIELD(file_bytes), "%" PRIu64 ", by subbuf_size and n_subbufs",
		                         layout->file_bytes);
	if (g->file_bytes != file_bytes)
		return relay_fault_value(faults, 0, file_bytes, "the size of the file", "%" PRIu64, g->file_bytes);
	if (g->n_claims != RELAY_N_CLAIMS)
		return relay_fault_value(faults, FIELD(n_claims), "%d", RELAY_N_CLAIMS);
	if (g->cpu >= g->n_buffers)
		return relay_fault_value(faults, FIELD(cpu), "less than n_buffers, which is %u", g->n_buffers);
	return 0;
}

/* What options demand of each other. */
static int check_combination(const struct relay_geometry *g, uint64_t at, struct relay_faults *faults)
{
	if (g->scheme == RELAY_ANY_SCHEME)
		return relay_fault_value(faults, FIELD(scheme), "%d to %d", RELAY_RSEQ, RELAY_LOCKING);
	if (!relay_reserves_fit(g->subbuf_size, g->start_reserve, g->end_reserve, g->channel_start_reserve, g->times))
		return relay_fault_value(faults, FIELD(start_reserve),
		                         "with end_reserve, channel_start_reserve and a record's head less than "
		                         "subbuf_size, %" PRIu64,
		                         g->subbuf_size);
	if (!relay_times_fit(g->times, g->format, g->mode, g->reserve))
		return relay_fault_value(faults, FIELD(times), "0 with this format, mode and reserve");
	if (g->times && g->timestamp != g->times)
		return relay_fault_value(faults, FIELD(timestamp), "the clock of times, %u", g->times);
	if (!relay_format_fits(g->format, g->timestamp, g->start_reserve, g->mode))
		return relay_fault_value(faults, FIELD(format), "0 with this timestamp, start_reserve and mode");
	return 0;
}

int relay_check_geometry(const struct relay_geometry *g, uint64_t file_bytes, struct relay_layout *layout,
                         struct relay_faults *faults)
{
	const uint64_t at = file_bytes - RELAY_PAGE_BYTES;
	if (g->magic == RELAY_RING_MAGIC)
		return -EMEDIUMTYPE;
	if (g->magic != RELAY_MAGIC)
		return relay_fault_value(faults, FIELD(magic), "%llu", RELAY_MAGIC);
	if (g->version != RELAY_LAYOUT_VERSION)
		return relay_fault_version(faults, FIELD(version), RELAY_LAYOUT_VERSION);
	int err = check_sizes(g, file_bytes, layout, at, faults);
	if (!err)
		err = relay_options_check(g, at, faults);
	return err ? err : check_combination(g, at, faults);
}
