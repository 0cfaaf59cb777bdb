/* SPDX-License-Identifier: MIT */
/* Stopping a ring: disabling and closing it. Declared in <relayfs/ring_store.h>. */
#define _GNU_SOURCE
#include "base/affinity.h"
#include "base/latch.h"
#include "ring/claims.h"
#include "ring/wake.h"

#include <errno.h>

/* Scheme rseq: run on the ring's CPU, so that every section there has ended or been aborted. */
static int abort_sections(const struct relay_ring *ring)
{
	struct relay_affinity affinity = {.active = false};
	int err = relay_migrate(ring->cpu, &affinity);
	relay_migrate_back(&affinity);
	return err;
}

/* Scheme lockless: change the tail's claim, so that each reservation that is about to be made fails, and its
 * producer loads the flags again. */
static int seal(struct relay_ring *ring)
{
	struct relay_u128 *tail = &ring->producer->tail[0];
	for (int tries = 0; tries < RELAY_CHANGE_TRIES; tries++) {
		/* As in relay_ring_next_place() in ring/reserve.h: the compare-and-swap checks both words. */
		uint64_t pos = __atomic_load_n(&tail->first, __ATOMIC_ACQUIRE);
		uint64_t second = __atomic_load_n(&tail->second, __ATOMIC_ACQUIRE);
		relay_ring_claims_help(ring);
		uint64_t mark = ((second >> RELAY_OWNER_SHIFT) + 1) | RELAY_OWNER_SEAL;
		if (relay_u128_cmpxchg(tail, pos, second, pos,
		                       (second & RELAY_RECORDS_MASK) | mark << RELAY_OWNER_SHIFT))
			return 0;
	}
	return relay_damage_say(&ring->damage, "relay_ring_producer.tail keeps changing");
}

void relay_ring_refuse_all(struct relay_ring *ring)
{
	if (ring->remote)
		return;
	/* Pairs with the load of the flags in each section of base/rseq.h, and with
	 * refuse_stopped() in ring/reserve.c. */
	__atomic_fetch_or(&ring->producer->flags, RELAY_DISABLED, __ATOMIC_SEQ_CST);
}

int relay_ring_stop(struct relay_ring *ring, uint32_t flag, int on)
{
	if (flag != RELAY_CLOSED && flag != RELAY_DISABLED)
		return -EINVAL;
	if (ring->remote)
		return -EOPNOTSUPP;
	/* The flag is changed before seal() changes the tail, or abort_sections() migrates. Pairs with check_place() in
	 * ring/reserve.c, which loads the tail first, and with the sections of base/rseq.h. */
	int err = 0;
	if (on)
		__atomic_fetch_or(&ring->producer->flags, flag, __ATOMIC_SEQ_CST);
	else
		__atomic_fetch_and(&ring->producer->flags, ~flag, __ATOMIC_SEQ_CST);
	if (on && ring->scheme == RELAY_RSEQ)
		err = abort_sections(ring);
	else if (on)
		err = seal(ring);
	relay_ring_notify(ring);
	return err;
}
