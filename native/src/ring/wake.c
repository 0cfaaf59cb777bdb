/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "ring/wake.h"

#include "base/arm.h"

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
