/* SPDX-License-Identifier: MIT */
/* Waking a ring's sleeping readers, as base/arm.h describes. A producer makes a system call only if a reader sleeps
 * and has consumed all records before the one that ends. */
#ifndef RELAYFS_RING_WAKE_H
#define RELAYFS_RING_WAKE_H

#include "base/futex.h"
#include "ring/ring.h"

/* The most rings for which one call of relay_ring_wait() can wait. */
enum { RELAY_RING_N_WAITED_FOR = RELAY_MAX_WORDS - 1 };

/* Wake the readers that armed the ring. */
void relay_ring_notify(struct relay_ring *ring);

/*
 * Wake readers after the record at pos was committed or discarded.
 *
 *     consumer                                    producer
 *     consumer position = pos                     header without BUSY
 *     seq = wake_seq, flags |= ARM
 *     membarrier
 *     if the header at pos is BUSY, sleep         if flags & ARM and consumer position == pos, wake
 *
 * The producer's loads and stores have no fence: see base/arm.h. A consumer that sleeps at pos has released all records
 * before it. Records behind one that is not committed wake no reader, because the commit of that one does.
 */
static inline void relay_ring_wake(struct relay_ring *ring, uint64_t pos, uint64_t flags)
{
	/* Relaxed, both loads: pair with relay_arm(), whose membarrier(2) orders them after the store of the header. */
	if (__builtin_expect(!(__atomic_load_n(&ring->producer->flags, __ATOMIC_RELAXED) & RELAY_ARM_RECORD), 1))
		return;
	if (flags & RELAY_RING_FORCE_WAKEUP ||
	    (!(flags & RELAY_RING_NO_WAKEUP) && __atomic_load_n(&ring->consumer->position, __ATOMIC_RELAXED) == pos))
		relay_ring_notify(ring);
}

#endif
