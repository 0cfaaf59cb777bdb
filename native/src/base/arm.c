/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "base/arm.h"

#include <errno.h>
#include <relayfs/store.h>

uint32_t relay_arm(struct relay_armed armed, uint32_t bits)
{
	uint32_t seq = relay_armed_seq(armed);
	/* Pairs with the relaxed load of the flags in relay_inline_is_armed(), relay_wake_switch() and relay_ring_wake().
	 * The fence below orders that load after the producer's store of the record. */
	__atomic_fetch_or(armed.flags, bits, __ATOMIC_SEQ_CST);
	relay_fence_writers();
	return seq;
}

void relay_wake_armed(struct relay_armed armed, uint32_t bits)
{
	int saved = errno;
	/* Only the producer that clears the bits makes a system call, however many see them set. Pairs with
	 * relay_arm(). */
	if (__atomic_fetch_and(armed.flags, ~bits, __ATOMIC_SEQ_CST) & bits) {
		/* Pairs with relay_armed_seq(), and with the kernel's comparison of the futex word in
		 * relay_futex_wait_any(). */
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
