/* SPDX-License-Identifier: MIT */
/* Waking those that sleep on a ring, and sleeping until that happens. */
#define _GNU_SOURCE
#include "ring/wake.h"

#include <errno.h>

void relay_ring_notify(struct relay_ring *ring)
{
	int saved = errno;
	/* Whoever clears the bit wakes: one system call however many producers see it set. */
	if (__atomic_fetch_and(&ring->producer->flags, ~(uint32_t)RELAY_ARM_RECORD, __ATOMIC_SEQ_CST) &
	    RELAY_ARM_RECORD) {
		/* Pairs with the futex's own comparison. */
		__atomic_add_fetch(&ring->state->wake_seq, 1, __ATOMIC_SEQ_CST);
		relay_wake_word(&ring->state->wake_seq);
	}
	errno = saved;
}

uint32_t relay_ring_wake_seq(const struct relay_ring *ring)
{
	return __atomic_load_n(&ring->state->wake_seq, __ATOMIC_SEQ_CST);
}

uint32_t relay_ring_arm(struct relay_ring *ring)
{
	uint32_t seq = relay_ring_wake_seq(ring);
	/* Pairs with relay_ring_wake(), fenced by the membarrier. */
	__atomic_fetch_or(&ring->producer->flags, RELAY_ARM_RECORD, __ATOMIC_SEQ_CST);
	relay_fence_writers();
	return seq;
}

int relay_ring_wait_any(struct relay_ring *const *rings, const uint32_t *seqs, size_t n, uint32_t *stop,
                        uint32_t stop_value, int timeout_ms)
{
	struct relay_futex words[RELAY_MAX_WORDS];
	if (n + !!stop == 0 || n > RELAY_RING_N_WAITED_FOR)
		return -EINVAL;
	for (size_t i = 0; i < n; i++)
		words[i] = (struct relay_futex){&rings[i]->state->wake_seq, seqs[i]};
	if (stop)
		words[n] = (struct relay_futex){stop, stop_value};
	return relay_futex_wait_any(words, n + !!stop, n ? relay_fenced_timeout(timeout_ms) : timeout_ms);
}
