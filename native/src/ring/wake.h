/* SPDX-License-Identifier: MIT */
/* Self-pacing notification: no system call unless somebody sleeps and the consumer has come to this very record. */
#ifndef RELAYFS_RING_WAKE_H
#define RELAYFS_RING_WAKE_H

#include "base/futex.h"
#include "ring/ring.h"

/* So many rings at once are waited for at most. */
enum { RELAY_RING_N_WAITED_FOR = RELAY_MAX_WORDS - 1 };

/* Wake those that armed the ring. */
void relay_ring_notify(struct relay_ring *ring);

/*
 * After the record at pos was committed or discarded.
 *
 *     consumer                                    producer
 *     consumer position = pos                     header without BUSY
 *     seq = wake_seq, flags |= ARM
 *     membarrier
 *     header at pos still BUSY? sleep             flags & ARM and consumer position == pos? wake
 *
 * Plain and unfenced on the producer's side: see base/arm.h. That the consumer sleeps at pos means that it has released all
 * before it. Records behind one that is not committed wake nobody: its commit does.
 */
static inline void relay_ring_wake(struct relay_ring *ring, uint64_t pos, uint64_t flags)
{
	/* Relaxed: fenced by the sleeper. */
	if (__builtin_expect(!(__atomic_load_n(&ring->producer->flags, __ATOMIC_RELAXED) & RELAY_ARM_RECORD), 1))
		return;
	if (flags & RELAY_RING_FORCE_WAKEUP ||
	    (!(flags & RELAY_RING_NO_WAKEUP) && __atomic_load_n(&ring->consumer->position, __ATOMIC_RELAXED) == pos))
		relay_ring_notify(ring);
}

#endif
