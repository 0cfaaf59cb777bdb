/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "ring/wake.h"

#include "base/wait_set.h"

#include <errno.h>

static struct relay_armed armed_of(const struct relay_ring *ring)
{
	return (struct relay_armed){&ring->producer->flags, &ring->state->wake_seq};
}

void relay_ring_notify(struct relay_ring *ring)
{
	relay_wake_armed(armed_of(ring), RELAY_ARM_RECORD);
}

uint32_t relay_ring_wake_seq(const struct relay_ring *ring)
{
	return relay_armed_seq(armed_of(ring));
}

uint32_t relay_ring_arm(struct relay_ring *ring)
{
	return relay_arm(armed_of(ring), RELAY_ARM_RECORD);
}

int relay_ring_wait_any(struct relay_ring *const *rings, const uint32_t *seqs, size_t n, uint32_t *stop,
                        uint32_t stop_value, int timeout_ms)
{
	struct relay_futex words[RELAY_MAX_WORDS];
	if (!relay_may_wait_for(n, stop))
		return -EINVAL;
	for (size_t i = 0; i < n; i++)
		words[i] = (struct relay_futex){&rings[i]->state->wake_seq, seqs[i]};
	return relay_wait_armed(words, n, stop, stop_value, timeout_ms);
}

static uint64_t glance(const void *waited_for)
{
	const struct relay_ring *ring = waited_for;
	/* Relaxed: only whether they differ counts, and who finds that out looks at all of it again. */
	uint64_t seen = relay_mix(0, __atomic_load_n(&ring->state->geometry.magic, __ATOMIC_RELAXED));
	seen = relay_mix(seen, __atomic_load_n(&ring->producer->position.first, __ATOMIC_RELAXED));
	seen = relay_mix(seen, __atomic_load_n(&ring->producer->tail[0].first, __ATOMIC_RELAXED));
	seen = relay_mix(seen, __atomic_load_n(&ring->producer->flags, __ATOMIC_RELAXED) & ~(uint32_t)RELAY_ARMED);
	seen = relay_mix(seen, __atomic_load_n(relay_ring_oldest_word(ring), __ATOMIC_RELAXED));
	seen = relay_mix(seen, __atomic_load_n(&ring->consumer->position, __ATOMIC_RELAXED));
	seen = relay_mix(seen, __atomic_load_n(&ring->consumer->current, __ATOMIC_RELAXED));
	return relay_mix(seen, __atomic_load_n(&ring->state->wake_seq, __ATOMIC_RELAXED));
}

void relay_wait_set_put_ring(struct relay_wait_set *set, uint32_t slot, struct relay_ring *ring, uint32_t seq)
{
	relay_wait_set_put(set, slot, ring, armed_of(ring), seq, glance);
}
