/* SPDX-License-Identifier: MIT */
/* Running restartable sections that are interrupted again and again, for example by a debugger that steps through
 * them. */
#ifndef RELAYFS_BASE_PERSIST_H
#define RELAYFS_BASE_PERSIST_H

#include "base/rseq.h"

/*
 * These functions run the sections of base/rseq.h: relay_rseq_transact(), relay_rseq_tally() and
 * relay_rseq_ring_reserve(). Their callers have run that section, or another one that does the same, once and got
 * RELAY_RSEQ_ABORTED. The functions run the section again and, after many interruptions, run it in a child process,
 * which no debugger stops. They return the section's result; RELAY_RSEQ_ABORTED: this thread is not on `cpu` any more,
 * or has no rseq, or cannot make a child. Async-signal-safe; leave errno as it was.
 */
enum relay_rseq_result relay_persist_transact(struct relay_latch *latch, const uint32_t *flags,
                                              const struct relay_tx *tx, uint32_t cpu);
enum relay_rseq_result relay_persist_tally(struct relay_latch *latch, uint64_t length, uint32_t cpu);
enum relay_rseq_result relay_persist_ring_reserve(struct relay_ring_producer *producer,
                                                  const struct relay_ring_put *put, uint64_t last, uint64_t new_last,
                                                  uint32_t cpu);

#endif
