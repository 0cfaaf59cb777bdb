/* SPDX-License-Identifier: MIT */
/*
 * Statistics of a ring, from its shared memory to the numbers that a file server shows, as buffer/stats.c is for
 * buffers. Each field of the result is checked and fits into 63 bits; a value that cannot be right yields -EBADMSG
 * and a note in ring->damage.
 */
#define _GNU_SOURCE
#include "base/latch.h"
#include "base/shown.h"
#include "ring/claims.h"
#include "ring/state.h"
#include "store/options.h"

#include <errno.h>
#include <relayfs/check_store.h>
#include <relayfs/store.h>

static void fill_in_geometry(const struct relay_ring *ring, struct relay_ring_stats *stats)
{
	/* Pairs with relay_ring_stop() in ring/control.c. */
	uint32_t flags = __atomic_load_n(&ring->producer->flags, __ATOMIC_ACQUIRE);
	*stats = (struct relay_ring_stats){.file_bytes = ring->mapping.bytes,
	                                   .cpu = ring->cpu,
	                                   .n_rings = ring->geometry.n_rings,
	                                   .closed = !!(flags & RELAY_CLOSED),
	                                   .disabled = !!(flags & RELAY_DISABLED)};
	relay_options_to_ring_stats(&ring->geometry, stats);
}

/* Scheme rseq: load the producer position and the number of records before it, as they were at one
 * moment. Returns 0 or -EBADMSG. */
static int read_produced_rseq(struct relay_ring *ring, uint64_t *produced, uint64_t *records)
{
	const struct relay_ring_producer *producer = ring->producer;
	for (int i = 0; i < RELAY_LATCH_TRIES; i++) {
		*produced = relay_ring_produced(ring);
		/* Pair with the sections of base/rseq.h, which store a tail before the position. The acquires keep
		 * both loads before the check of the position below. */
		bool other = __atomic_load_n(&producer->tail[0].first, __ATOMIC_ACQUIRE) != *produced;
		*records = __atomic_load_n(&producer->tail[other].second, __ATOMIC_ACQUIRE);
		if (relay_ring_produced(ring) == *produced)
			return 0;
	}
	return relay_damage_say(&ring->damage, "the producer position keeps changing");
}

static int read_produced(struct relay_ring *ring, struct relay_ring_stats *stats)
{
	const struct relay_u128 *tail = &ring->producer->tail[0];
	struct relay_damage *damage = &ring->damage;
	uint64_t reserved;
	/* Loaded before the count of records, because each torn record was reserved. */
	stats->torn_records = relay_ring_claims_torn(ring);
	if (ring->scheme == RELAY_RSEQ) {
		if (read_produced_rseq(ring, &stats->producer_position, &stats->records))
			return -EBADMSG;
		reserved = stats->producer_position;
	} else {
		stats->producer_position = relay_ring_produced(ring);
		/* The count is loaded before the position: records that are reserved in between
		 * only increase the position. */
		stats->records = __atomic_load_n(&tail->second, __ATOMIC_ACQUIRE) & RELAY_RECORDS_MASK;
		reserved = __atomic_load_n(&tail->first, __ATOMIC_ACQUIRE);
	}
	if (stats->producer_position % RELAY_RING_HEADER_BYTES)
		return relay_damage_note(damage, "the producer position", 0, stats->producer_position, "no multiple of",
		                         RELAY_RING_HEADER_BYTES);
	if (relay_damage_above(damage, "the producer position", 0, stats->producer_position, INT64_MAX) ||
	    relay_damage_above(damage, "the position up to which is reserved", 0, reserved, INT64_MAX) ||
	    relay_damage_above(damage, "the count of records reserved", 0, stats->records,
	                       reserved / RELAY_RING_HEADER_BYTES) ||
	    relay_damage_above(damage, "the count of torn records", 0, stats->torn_records, stats->records))
		return -EBADMSG;
	return 0;
}

static void fill_in_consumer(struct relay_ring_stats *stats, const struct relay_ring_counts *counts)
{
	stats->consumer_position = counts->position;
	stats->foreign_bytes = counts->foreign;
	/* Not negative, because relay_ring_counts() has checked it. */
	stats->read_records = counts->records - counts->missed;
	stats->read_bytes = counts->bytes;
	stats->skipped_records = counts->discarded;
	stats->lost_overwritten_records = counts->missed;
}

static int read_positions(struct relay_ring *ring, struct relay_ring_stats *stats)
{
	for (int i = 0;; i++) {
		struct relay_ring_counts counts;
		/* The consumer is loaded first, so that the producers' values, loaded later, cannot be before it. */
		if (relay_ring_counts(ring, &counts) ||
		    relay_damage_above(&ring->damage, "relay_ring_counts.foreign", 0, counts.foreign,
		                       counts.position) ||
		    read_produced(ring, stats))
			return -EBADMSG;
		fill_in_consumer(stats, &counts);
		uint64_t produced = stats->producer_position;
		stats->unread_bytes = produced - counts.position;
		if (stats->unread_bytes < ring->size)
			return 0;
		int err = relay_damage_note(&ring->damage, "the producer position", 0, produced,
		                            "not less than a ring's size after the consumer position", counts.position);
		if (i == RELAY_RING_MOVE_TRIES || !relay_ring_is_lapped(ring, counts.position))
			return err;
		relay_damage_forget(&ring->damage);
	}
}

static int read_stats(struct relay_ring *ring, struct relay_ring_stats *stats)
{
	const struct relay_ring_state *state = ring->state;
	fill_in_geometry(ring, stats);
	if (relay_ring_check_magic(ring) || read_positions(ring, stats) ||
	    relay_damage_loss(&ring->damage, "relay_ring_state.lost_full.second", &state->lost_full,
	                      &stats->lost_full_records, &stats->lost_full_bytes) ||
	    relay_damage_loss(&ring->damage, "relay_ring_state.lost_too_large.second", &state->lost_too_large,
	                      &stats->lost_too_large_records, &stats->lost_too_large_bytes) ||
	    relay_damage_loss(&ring->damage, "relay_ring_state.lost_disabled.second", &state->lost_disabled,
	                      &stats->lost_disabled_records, &stats->lost_disabled_bytes))
		return -EBADMSG;
	const uint64_t losses[] = {stats->lost_full_records, stats->lost_too_large_records,
	                           stats->lost_disabled_records, stats->lost_overwritten_records, stats->torn_records};
	for (size_t i = 0; i < sizeof(losses) / sizeof(losses[0]); i++)
		if (relay_damage_add(&ring->damage, "a part of all lost records", losses[i], &stats->lost_records))
			return -EBADMSG;
	/* Relaxed: the field does not depend on others. */
	stats->wakeups = __atomic_load_n(&state->wake_seq, __ATOMIC_RELAXED);
	return 0;
}

int relay_ring_stats(struct relay_ring *ring, struct relay_ring_stats *stats)
{
	if (ring->remote)
		return -EOPNOTSUPP;
	for (int i = 0;; i++) {
		struct relay_ring_moment begin = relay_ring_moment(ring);
		int err = read_stats(ring, stats);
		if (!err || i == RELAY_RING_MOVE_TRIES || !relay_ring_has_moved(ring, begin))
			return err;
		relay_damage_forget(&ring->damage);
	}
}

static struct relay_ring *look_at(const char *mem_file, struct relay_shown *shown)
{
	int fd = relay_show_open(mem_file, shown);
	if (fd >= 0)
		return relay_ring_glance(fd);
	errno = -fd;
	return NULL;
}

int relay_ring_show(struct relay_ring *ring, const char *mem_file, struct relay_shown *shown, struct relay_empty *empty)
{
	(void)empty;
	struct relay_ring_stats stats;
	struct relay_ring *mapped = ring ? ring : look_at(mem_file, shown);
	if (!mapped)
		return -errno;
	int err = ring ? relay_show_status(&ring->mapping, mem_file, shown) : 0;
	if (!err)
		err = relay_ring_stats(mapped, &stats);
	if (!err) {
		shown->unread = stats.unread_bytes;
		shown->written = stats.producer_position;
	}
	if (!ring)
		relay_ring_close(mapped);
	return err;
}

/* --- time of the last change --- */

void relay_ring_mtime(const struct relay_ring *ring, uint64_t *count, uint64_t *time_ns)
{
	relay_latch_read_or_zero(&ring->state->mtime, count, time_ns);
	if (*time_ns > INT64_MAX)
		*count = *time_ns = 0;
}

void relay_ring_keep_mtime(struct relay_ring *ring, uint64_t count, uint64_t time_ns)
{
	relay_latch_store(&ring->state->mtime, count, time_ns);
}
