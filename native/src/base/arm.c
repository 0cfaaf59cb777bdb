/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "base/arm.h"

#include <errno.h>
#include <relayfs/store.h>

uint32_t relay_arm(struct relay_armed armed, uint32_t bits)
{
	uint32_t seq = relay_armed_seq(armed);
	/* Pairs with the relaxed load of the flags in relay_wake_record(), relay_wake_switch() and relay_ring_wake(), which the
	 * membarrier orders after what the producer has published. */
	__atomic_fetch_or(armed.flags, bits, __ATOMIC_SEQ_CST);
	relay_fence_writers();
	return seq;
}

void relay_wake_armed(struct relay_armed armed, uint32_t bits)
{
	int saved = errno;
	/* Whoever clears the bits wakes: one system call however many producers see them set. Pairs with relay_arm(). */
	if (__atomic_fetch_and(armed.flags, ~bits, __ATOMIC_SEQ_CST) & bits) {
		/* Pairs with the futex's own comparison in relay_wait_armed(). */
		__atomic_add_fetch(armed.seq, 1, __ATOMIC_SEQ_CST);
		relay_wake_word(armed.seq);
	}
	errno = saved;
}

int relay_wait_armed(struct relay_futex *words, size_t n, uint32_t *stop, uint32_t stop_value, int timeout_ms)
{
	if (stop)
		words[n] = (struct relay_futex){stop, stop_value};
	return relay_futex_wait_any(words, n + !!stop, n ? relay_fenced_timeout(timeout_ms) : timeout_ms);
}
