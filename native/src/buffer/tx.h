/* SPDX-License-Identifier: MIT */
/* Changing a latch of a buffer: by a restartable section on the buffer's CPU in scheme rseq, otherwise by compare-and-swap. */
#ifndef RELAYFS_BUFFER_TX_H
#define RELAYFS_BUFFER_TX_H

#include "base/persist.h"
#include "base/rseq.h"
#include "buffer/buffer.h"

/* relay_tx_commit() by a restartable section. */
enum relay_rseq_result relay_tx_transact(struct rchan_buf *buf, struct relay_latch *latch, struct relay_tx *tx);

/* Change a latch from what relay_tx_load() saw to tx->new_first and tx->new_second; in scheme rseq, store tx->store[] before. */
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

/* Load a latch, its index included, for relay_tx_commit(). The two words may be of two moments, in which case the commit fails.
 * In the other schemes than rseq the index is never set; if somebody has stored nonsense there, the commit fails, too. */
static inline struct relay_tx relay_tx_load(const struct rchan_buf *buf, const struct relay_latch *latch)
{
	struct relay_tx tx = {.expect_first = __atomic_load_n(&latch->first, __ATOMIC_ACQUIRE)};
	unsigned valid = buf->scheme != RELAY_RSEQ ? 0 : tx.expect_first >> 63;
	tx.expect_second = __atomic_load_n(&latch->second[valid], __ATOMIC_ACQUIRE);
	return tx;
}

#endif
