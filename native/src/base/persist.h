/* SPDX-License-Identifier: MIT */
/* Restartable sections that are interrupted each time, as by a debugger that steps through them. */
#ifndef RELAYFS_BASE_PERSIST_H
#define RELAYFS_BASE_PERSIST_H

#include "base/rseq.h"

/*
 * What the functions of base/rseq.h of nearly the same names do, after one that was RELAY_RSEQ_ABORTED on `cpu`: they try again,
 * and after many interruptions let a child run the section, which no debugger stops. RELAY_RSEQ_ABORTED: this thread is not
 * on `cpu` any more, or has no rseq, or there can be no child.
 *
 * Async-signal-safe. A child has a copy of this process's private memory, and what sections store to is shared.
 */
enum relay_rseq_result relay_persist_transact(struct relay_latch *latch, const uint32_t *flags,
                                              const struct relay_tx *tx, uint32_t cpu);
enum relay_rseq_result relay_persist_tally(struct relay_latch *latch, uint64_t length, uint32_t cpu);
enum relay_rseq_result relay_persist_ring_reserve(struct relay_ring_producer *producer,
                                                  const struct relay_ring_put *put, uint64_t last, uint64_t new_last,
                                                  uint32_t cpu);

#endif
