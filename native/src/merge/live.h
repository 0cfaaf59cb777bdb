/* SPDX-License-Identifier: MIT */
/* What programs write to while it is merged: a relay buffer (buffer.c) or a ring (ring.c). live.c makes a source of it. */
#ifndef RELAYFS_MERGE_LIVE_H
#define RELAYFS_MERGE_LIVE_H

#include "buffer/follow.h"
#include "merge/merge.h"

/* The first member of a struct of buffer.c or ring.c. */
struct relay_followed {
	/* Copy the next piece of events, and fill in `piece`. Returns as relay_follow_copy(). */
	int (*copy)(struct relay_followed *followed, void *to, size_t size);
	/* Move behind the first `bytes` bytes of `piece`, which are n_events events. */
	void (*pass)(struct relay_followed *followed, size_t bytes, uint64_t n_events);
	/* The event at the position is none, or too long: move behind it, or to where the next one is certain to begin. */
	void (*leave)(struct relay_followed *followed);
	/* Nothing will be written any more: count what was not passed as lost. Returns 0 or -EBADMSG. */
	int (*end)(struct relay_followed *followed);
	/* Consume what was passed, as far as programs need the room; NULL: nothing is ever consumed. */
	void (*consume)(struct relay_followed *followed);
	/* Store in *number up to where has been written, as `number` below counts. false: that is not known now. */
	bool (*head)(struct relay_followed *followed, uint64_t *number);
	void (*close)(struct relay_followed *followed);

	/* Where it is read: it has moved when these have changed. head() can be `ahead` more than `number`. */
	uint64_t number, offset, ahead;
	uint32_t resets;    /* as relay_follow.resets */
	uint64_t lost;      /* as relay_follow.lost */
	uint64_t longest;   /* bytes that an event can have */
	uint64_t n_damaged; /* records with times that cannot be, which they were given other ones for */
	struct relay_piece piece;
};

/* Add a stream of what is followed, which is closed with the merge, also after an error. Returns as relay_merge_add_source(). */
int relay_merge_add_followed(struct relay_merge *merge, int process, uint32_t cpu, struct relay_followed *followed);

/* --- records with times --- */

/* How far a time may be ahead of the clock after the copy: it may be of another CPU's clock. */
enum { RELAY_AHEAD_S = 1 };

/* The times of records, in their order, as they are given out. */
struct relay_times {
	const struct relay_traced *traced;
	uint64_t last, latest; /* no time is earlier, or later */
};

/* Before records of a piece are copied. */
void relay_times_begin(struct relay_times *times);

/* The time to give out of a record that says `time`, which some clocks and any program may have set back. *n_damaged counts those that lie in
 * the future. */
uint64_t relay_times_next(struct relay_times *times, uint64_t time, uint64_t *n_damaged);

#endif
