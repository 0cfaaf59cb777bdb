/* SPDX-License-Identifier: MIT */
/* Reserve room for a record in a ring: room, refusals, both schemes. ring_reserve.c tells how. */
#ifndef RELAYFS_RING_RESERVE_H
#define RELAYFS_RING_RESERVE_H

#include "ring_claims.h"
#include "rseq.h"

/* The thread sanitizer does not see what assembly publishes. */
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#define RELAY_RING_PUBLISHES(ring) __tsan_release(&(ring)->producer->position.first)
#else
#define RELAY_RING_PUBLISHES(ring) ((void)(ring))
#endif

/* Not an errno: this thread is not (any more) on the ring's CPU. */
enum { RELAY_RING_WRONG_CPU = 1 };

/* Reserve `length` bytes for a claim, which is then the caller's, at *pos. 0, an error of relay_ring_output(), or
 * RELAY_RING_WRONG_CPU. */
int relay_ring_reserve_claimed(struct relay_ring *ring, uint64_t length, struct relay_ring_claim **claim,
                               uint64_t *pos);

/* In scheme rseq: see that a record may be put at the producer position, and how. The same results. */
int relay_ring_prepare(struct relay_ring *ring, uint64_t length, uint32_t bits, struct relay_ring_put *put);

/* After RELAY_RSEQ_ABORTED: a reason to give up on this CPU, or 0: it was only an interruption. */
int relay_ring_misplaced(const struct relay_ring *ring);

/* No record can be so long: counted. -EAGAIN, or as above. */
int relay_ring_refuse_too_large(struct relay_ring *ring, uint64_t length);

static inline bool relay_ring_is_too_large(const struct relay_ring *ring, uint64_t length)
{
	return length > RELAY_RING_RECORD_MAX || relay_ring_total(length) > ring->mask;
}

#endif
