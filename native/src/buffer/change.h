/* SPDX-License-Identifier: MIT */
/* How a pair of a buffer changes: by a restartable section on the buffer's CPU, or by compare-and-swap. */
#ifndef RELAYFS_BUFFER_CHANGE_H
#define RELAYFS_BUFFER_CHANGE_H

#include "base/persist.h"
#include "base/rseq.h"
#include "buffer/buffer.h"

/* The thread sanitizer does not see what assembly publishes. */
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#define RELAY_PUBLISHES(word) __tsan_release(word)
#else
#define RELAY_PUBLISHES(word) ((void)(word))
#endif

/* Not an errno: this thread is not (any more) on the buffer's CPU. */
enum { RELAY_WRONG_CPU = 1 };

/* Change a pair in the buffer's way; `tx` holds what was seen (raw, with its toggle) and what shall be. */
static inline enum relay_rseq_result relay_change(struct rchan_buf *buf, struct relay_pair *pair, struct relay_tx *tx)
{
	static uint64_t nowhere;
	RELAY_PUBLISHES(&pair->first);
	if (buf->scheme != RELAY_RSEQ) {
		for (int i = 0; i < 3 && buf->scheme == RELAY_LOCKING; i++)
			if (tx->store[i].at)
				__atomic_store_n(tx->store[i].at, tx->store[i].value, __ATOMIC_RELAXED);
		if (relay_pair_swap(pair, tx->expect_first, tx->expect_second, tx->new_first, tx->new_second))
			return RELAY_RSEQ_DONE;
		return RELAY_RSEQ_MOVED;
	}
	for (int i = 0; i < 3; i++)
		if (!tx->store[i].at)
			tx->store[i].at = &nowhere;
	tx->new_first |= ~tx->expect_first & RELAY_PAIR_TOGGLE;
	enum relay_rseq_result result = relay_rseq_transact(pair, &buf->control->flags, tx, buf->cpu);
	if (__builtin_expect(result != RELAY_RSEQ_ABORTED, 1))
		return result;
	return relay_persist_transact(pair, &buf->control->flags, tx, buf->cpu);
}

/* What lies there, raw. Not consistent: the change that follows finds out. In a lockless buffer the toggle is
 * never set; were it, by somebody's nonsense, the other second word would never match. */
static inline struct relay_tx relay_look(const struct rchan_buf *buf, const struct relay_pair *pair)
{
	struct relay_tx tx = {.expect_first = __atomic_load_n(&pair->first, __ATOMIC_ACQUIRE)};
	unsigned valid = buf->scheme != RELAY_RSEQ ? 0 : tx.expect_first >> 63;
	tx.expect_second = __atomic_load_n(&pair->second[valid], __ATOMIC_ACQUIRE);
	return tx;
}

/* After an abort: is there a reason to give up on this CPU? 0: it was only an interruption. */
static inline int relay_misplaced(const struct rchan_buf *buf)
{
	if (!relay_rseq_registered())
		return -ENOTSUP;
	return relay_rseq_cpu() == buf->cpu ? 0 : RELAY_WRONG_CPU;
}

#endif
