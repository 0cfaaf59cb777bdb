/* SPDX-License-Identifier: MIT */
/* Reading a ring with `times` beside its consumer, and consuming nothing. ring/follow.c describes how. */
#ifndef RELAYFS_RING_FOLLOW_H
#define RELAYFS_RING_FOLLOW_H

#include "ring/ring.h"

/* The position of such a reader, and what it has counted. */
struct relay_ring_follow {
	struct relay_ring *ring;
	struct relay_ring_counts counts; /* position: of the next record; missed: records that were not read in time */
	uint64_t refused;                /* records that the ring had refused when the reader began */
	uint64_t foreign;                /* bytes that were passed over without knowing how many records they are */
	uint64_t lost;                   /* as relay_ring_follow_lost() said last */
};

/* A record that was copied, or the first part of it. */
struct relay_ring_copy {
	uint64_t time;
	size_t length; /* of the record; behind the header, in memory, its time is before it */
	struct relay_ring_counts behind;
};

/* Begin with the oldest record that no consumer has consumed. Returns 0 or -EBADMSG. */
int relay_ring_follow_start(struct relay_ring_follow *follow, struct relay_ring *ring);

/*
 * Copy the next record, at most `size` bytes of it, and its time. work: as for relay_ring_find_next(). Returns 1; 0: there is none;
 * -EAGAIN: it was overwritten at each try, or *work is used up; -EBADMSG.
 */
int relay_ring_follow_copy(struct relay_ring_follow *follow, struct relay_ring_copy *record, void *to, size_t size,
                           uint32_t *work);

/* Move behind a record that was copied. */
void relay_ring_follow_pass(struct relay_ring_follow *follow, const struct relay_ring_copy *record);

/* The records that were not read in time, or refused, since the reader began. Of what a consumer that knows only the kernel's
 * format has consumed meanwhile, the number of records is not known: it counts as one. */
uint64_t relay_ring_follow_lost(struct relay_ring_follow *follow);

#endif
