/* SPDX-License-Identifier: MIT */
/*
 * How often readers have producers wake them. A wake-up costs its producer a system call, so a reader that finds nothing arms
 * the wake-up (base/arm.h) at most once in RELAY_ARM_EVERY_US. Until then it looks again by itself: so a producer of more
 * records than 2,000 a second makes no more than 2,000 system calls a second, and a reader sees a record at most
 * RELAY_NAP_US and the time to get a CPU later.
 */
#ifndef RELAYFS_BASE_PACE_H
#define RELAYFS_BASE_PACE_H

#include <stdint.h>

enum { RELAY_ARM_EVERY_US = 500, RELAY_NAP_US = 100 };

/* Of one reader; all 0 at first. A nap is a sleep of at most RELAY_NAP_US, for which no wake-up is armed. */
struct relay_pace {
	int64_t armed_us;   /* CLOCK_MONOTONIC when the wake-up was armed last */
	uint64_t napped_at; /* `position` when the reader last slept or took a nap */
	uint64_t seen_at;   /* `position` at the last call */
	uint32_t n_yielded; /* calls in a row with this position */
};

/*
 * Called by a reader that has found nothing.
 *
 * position  bytes that it has consumed
 * size      of the buffer in bytes
 *
 * Returns 1: some time has passed, look again. 0: arm the wake-up, look once more and sleep. -EINTR: a signal was caught.
 */
int relay_pace(struct relay_pace *pace, uint64_t position, uint64_t size);

/*
 * A reader that keeps up with a producer finds only a few records at each look at the producer's position. Each look
 * moves the cache line of that position, which the producer stores to for each record, to the reader's CPU and back,
 * and the lines of the newest records, too, so that both wait for most of the time. Therefore such a reader waits
 * before it looks again: longer after each look that finds little, up to some microseconds, and not at all after one
 * that finds nothing.
 */
struct relay_look {
	uint64_t at;       /* `position` at the last look */
	uint32_t n_pauses; /* how long the reader has waited before it */
};

/* Called by a reader that has consumed all that it has seen, up to `position`, in bytes, before it looks for more. */
void relay_before_look(struct relay_look *look, uint64_t position);

#endif
