/* SPDX-License-Identifier: MIT */
/* What is done to a ring from outside its producers and its consumer: stop it, tell everything of it. */
#define _GNU_SOURCE
#include "oncpu.h"
#include "pair.h"
#include "ring_claims.h"
#include "ring_read.h"
#include "ring_wake.h"

#include <errno.h>

/* In scheme rseq: every section that was open on the ring's CPU has ended or begins anew. */
static int visit_cpu(const struct relay_ring *ring)
{
	struct relay_visit visit = {.active = false};
	int err = relay_cpu_visit(ring->cpu, &visit);
	relay_cpu_leave(&visit);
	return err;
}

/* In scheme lockless: every reservation that is about to be made fails, and looks at the flags again. */
static void seal(struct relay_ring *ring)
{
	struct relay_two *tail = &ring->producer->tail[0];
	for (;;) {
		uint64_t pos = __atomic_load_n(&tail->first, __ATOMIC_ACQUIRE);
		uint64_t second = __atomic_load_n(&tail->second, __ATOMIC_ACQUIRE);
		relay_ring_claims_help(ring);
		uint64_t mark = ((second >> RELAY_OWNER_SHIFT) + 1) | RELAY_OWNER_SEAL;
		if (relay_two_swap(tail, pos, second, pos, (second & RELAY_RECORDS_MASK) | mark << RELAY_OWNER_SHIFT))
			return;
	}
}

int relay_ring_stop(struct relay_ring *ring, uint32_t flag, int on)
{
	if (flag != RELAY_CLOSED && flag != RELAY_DISABLED)
		return -EINVAL;
	int err = 0;
	if (on)
		__atomic_fetch_or(&ring->producer->flags, flag, __ATOMIC_SEQ_CST);
	else
		__atomic_fetch_and(&ring->producer->flags, ~flag, __ATOMIC_SEQ_CST);
	if (on && ring->scheme == RELAY_RSEQ)
		err = visit_cpu(ring);
	else if (on)
		seal(ring);
	relay_ring_notify(ring);
	return err;
}

/* How many records have ever been reserved. */
static uint64_t count_reserved(const struct relay_ring *ring)
{
	const struct relay_ring_producer *producer = ring->producer;
	if (ring->scheme != RELAY_RSEQ)
		return __atomic_load_n(&producer->tail[0].second, __ATOMIC_ACQUIRE) & RELAY_RECORDS_MASK;
	for (int i = 0; i < RELAY_PAIR_TRIES; i++) {
		uint64_t produced = relay_ring_produced(ring);
		bool other = __atomic_load_n(&producer->tail[0].first, __ATOMIC_ACQUIRE) != produced;
		uint64_t records = __atomic_load_n(&producer->tail[other].second, __ATOMIC_ACQUIRE);
		if (relay_ring_produced(ring) == produced)
			return records;
	}
	return 0;
}

int relay_ring_facts(struct relay_ring *ring, struct relay_ring_facts *facts)
{
	const struct relay_ring_state *state = ring->state;
	struct relay_ring_counts counts;
	uint32_t flags = __atomic_load_n(&ring->producer->flags, __ATOMIC_ACQUIRE);
	*facts = (struct relay_ring_facts){.ring_size = ring->size,
	                                   .file_bytes = ring->shm.bytes,
	                                   .cpu = ring->cpu,
	                                   .n_rings = ring->n_rings,
	                                   .mode = ring->mode,
	                                   .scheme = ring->scheme,
	                                   .buffers = ring->buffers,
	                                   .read = ring->read,
	                                   .framing = ring->framing,
	                                   .closed = !!(flags & RELAY_CLOSED),
	                                   .disabled = !!(flags & RELAY_DISABLED)};
	/* The consumer first: it can only be behind what is read of the producers after it. */
	if (relay_ring_counts(ring, &counts) ||
	    __atomic_load_n(&state->geometry.magic, __ATOMIC_RELAXED) != RELAY_RING_MAGIC)
		return -EBADMSG;
	facts->consumer_position = counts.position;
	facts->read_records = counts.records - counts.missed;
	facts->read_bytes = counts.bytes;
	facts->skipped_records = counts.discarded;
	facts->lost_overwritten_records = counts.missed;
	facts->producer_position = relay_ring_produced(ring);
	facts->records = count_reserved(ring);
	facts->torn_records = relay_ring_claims_torn(ring);
	facts->wakeups = __atomic_load_n(&state->wake_seq, __ATOMIC_RELAXED);
	relay_pair_or_zero(&state->lost_full, &facts->lost_full_records, &facts->lost_full_bytes);
	relay_pair_or_zero(&state->lost_too_large, &facts->lost_too_large_records, &facts->lost_too_large_bytes);
	relay_pair_or_zero(&state->lost_disabled, &facts->lost_disabled_records, &facts->lost_disabled_bytes);
	return 0;
}

void relay_ring_moved(const struct relay_ring *ring, uint64_t *count, uint64_t *time_ns)
{
	relay_pair_or_zero(&ring->state->moved, count, time_ns);
}

void relay_ring_keep_moved(struct relay_ring *ring, uint64_t count, uint64_t time_ns)
{
	relay_pair_store(&ring->state->moved, count, time_ns);
}
