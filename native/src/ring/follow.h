/* SPDX-License-Identifier: MIT */
/* Reading a ring beside its consumer, without consuming; see ring/follow.c. */
#ifndef RELAYFS_RING_FOLLOW_H
#define RELAYFS_RING_FOLLOW_H

#include "ring/ring.h"

/* The position of such a reader, and what it has counted. */
struct relay_ring_follow {
	struct relay_ring *ring;
	struct relay_ring_counts counts; /* position: of the next record; missed: records that were not read in time */
	uint64_t refused;                /* records that the ring had refused when the reader began */
	uint64_t foreign;                /* bytes of missed records whose number is not known */
	uint64_t lost;                   /* the last result of relay_ring_follow_lost() */
};

/* A record that was copied, or the first part of it. */
struct relay_ring_copy {
	uint64_t time;
	size_t length;                   /* of the whole record, without its header and time */
	struct relay_ring_counts behind; /* the counts after this record, for relay_ring_follow_pass() */
};

/* Begin with the oldest record that no consumer has consumed. Returns 0 or -EBADMSG. */
int relay_ring_follow_start(struct relay_ring_follow *follow, struct relay_ring *ring);

/*
 * Copy the next record, at most `size` bytes of it, and its time. work: as for relay_ring_find_next(). Returns 1; 0: there
 * is none; -EAGAIN: it was overwritten at each try, or *work is used up; -EBADMSG.
 */
int relay_ring_follow_copy(struct relay_ring_follow *follow, struct relay_ring_copy *record, void *to, size_t size,
                           uint32_t *work);

/* Move behind a record that was copied. */
void relay_ring_follow_pass(struct relay_ring_follow *follow, const struct relay_ring_copy *record);

/* Return how many records the ring has refused since it was made: as it was full, they were too large, it was disabled. */
void relay_ring_lost_by_cause(const struct relay_ring *ring, uint64_t records[3]);

/* Return how many records were refused, or consumed or overwritten before they were read, since relay_ring_follow_start().
 * If a consumer that knows only the kernel's format has consumed unread records, their number is not known, and they count
 * as one. */
uint64_t relay_ring_follow_lost(struct relay_ring_follow *follow);

#endif
