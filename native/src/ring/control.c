/* SPDX-License-Identifier: MIT */
/* Stopping a ring: disabling and closing it. */
#define _GNU_SOURCE
#include "base/affinity.h"
#include "base/latch.h"
#include "ring/claims.h"
#include "ring/wake.h"

#include <errno.h>

/* Scheme rseq: wait until every section on the ring's CPU has ended or been restarted. */
static int visit_cpu(const struct relay_ring *ring)
{
	struct relay_affinity affinity = {.active = false};
	int err = relay_migrate(ring->cpu, &affinity);
	relay_migrate_back(&affinity);
	return err;
}

/* Scheme lockless: make every reservation that is about to be made fail, so that its producer loads the flags again. */
static int seal(struct relay_ring *ring)
{
	struct relay_u128 *tail = &ring->producer->tail[0];
	for (int tries = 0; tries < RELAY_CHANGE_TRIES; tries++) {
		uint64_t pos = __atomic_load_n(&tail->first, __ATOMIC_ACQUIRE);
		uint64_t second = __atomic_load_n(&tail->second, __ATOMIC_ACQUIRE);
		relay_ring_claims_help(ring);
		uint64_t mark = ((second >> RELAY_OWNER_SHIFT) + 1) | RELAY_OWNER_SEAL;
		if (relay_u128_cmpxchg(tail, pos, second, pos,
		                       (second & RELAY_RECORDS_MASK) | mark << RELAY_OWNER_SHIFT))
			return 0;
	}
	return relay_damage_say(&ring->damage, "relay_ring_producer.tail does not come to rest");
}

void relay_ring_refuse_all(struct relay_ring *ring)
{
	if (ring->remote)
		return;
	/* Pairs with the test in every section, and with refuse_stopped(). */
	__atomic_fetch_or(&ring->producer->flags, RELAY_DISABLED, __ATOMIC_SEQ_CST);
}

int relay_ring_stop(struct relay_ring *ring, uint32_t flag, int on)
{
	if (flag != RELAY_CLOSED && flag != RELAY_DISABLED)
		return -EINVAL;
	if (ring->remote)
		return -EOPNOTSUPP;
	int err = 0;
	if (on)
		__atomic_fetch_or(&ring->producer->flags, flag, __ATOMIC_SEQ_CST);
	else
		__atomic_fetch_and(&ring->producer->flags, ~flag, __ATOMIC_SEQ_CST);
	if (on && ring->scheme == RELAY_RSEQ)
		err = visit_cpu(ring);
	else if (on)
		err = seal(ring);
	relay_ring_notify(ring);
	return err;
}
