/* SPDX-License-Identifier: MIT */
/* Changing a latch of a buffer: by a restartable section on the buffer's CPU in scheme rseq,
 * otherwise by compare-and-swap. */
#ifndef RELAYFS_BUFFER_TX_H
#define RELAYFS_BUFFER_TX_H

#include "base/persist.h"
#include "base/rseq.h"
#include "buffer/buffer.h"

/* relay_tx_commit() in scheme rseq: by a restartable section. */
enum relay_rseq_result relay_tx_transact(struct rchan_buf *buf, struct relay_latch *latch, struct relay_tx *tx);

/* Change a latch from the words that relay_tx_load() has loaded to tx->new_first and tx->new_second; in scheme rseq,
 * also store tx->store[] before. Returns RELAY_RSEQ_DONE; RELAY_RSEQ_MOVED: the latch has changed since; in scheme
 * rseq also RELAY_RSEQ_STOPPED: one of the flags tx->refuse is set, RELAY_RSEQ_ABORTED: see base/persist.h. */
static inline enum relay_rseq_result relay_tx_commit(struct rchan_buf *buf, struct relay_latch *latch,
                                                     struct relay_tx *tx)
{
	RELAY_PUBLISHES(&latch->first);
	if (buf->scheme == RELAY_RSEQ)
		return relay_tx_transact(buf, latch, tx);
	bool is_changed =
	    relay_latch_cmpxchg(latch, tx->expect_first, tx->expect_second, tx->new_first, tx->new_second);
	return is_changed ? RELAY_RSEQ_DONE : RELAY_RSEQ_MOVED;
}

/* Load a latch, with its index, for relay_tx_commit(). If the two words are of different moments, the commit fails.
 * In other schemes than rseq the index is never set; if damaged memory has it set, it is ignored, and the commit clears
 * it. The acquires pair with the commits of other threads (base/latch.h). */
static inline struct relay_tx relay_tx_load(const struct rchan_buf *buf, const struct relay_latch *latch)
{
	struct relay_tx tx = {.expect_first = __atomic_load_n(&latch->first, __ATOMIC_ACQUIRE)};
	unsigned valid = buf->scheme != RELAY_RSEQ ? 0 : tx.expect_first >> 63;
	tx.expect_second = __atomic_load_n(&latch->second[valid], __ATOMIC_ACQUIRE);
	return tx;
}

#endif
