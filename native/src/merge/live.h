/* SPDX-License-Identifier: MIT */
/* Merging what programs are still writing: the interface between live.c, which makes a source (merge/stream.h) of a relay
 * buffer or a ring, and buffer.c or ring.c, which read it. */
#ifndef RELAYFS_MERGE_LIVE_H
#define RELAYFS_MERGE_LIVE_H

#include "buffer/follow.h"
#include "merge/merge.h"

/* The causes of refusals, the first of which is RELAY_LOSS_FULL. */
enum { RELAY_N_REFUSALS = 3 };

/* A relay buffer or a ring: the first member of struct followed_buffer (buffer.c) or struct followed_ring (ring.c). */
struct relay_followed {
	/* Copy the next piece, which holds events in the format of a packet, and fill in `piece`. Returns as
	 * relay_follow_copy(). */
	int (*copy)(struct relay_followed *followed, void *to, size_t size);
	/* Move behind the first n_events events of `piece`, which are valid and have `bytes` bytes. */
	void (*pass)(struct relay_followed *followed, size_t bytes, uint64_t n_events);
	/* Move behind the event at the position, which is not valid or too long; or, if its end is not known, to the next
	 * sub-buffer. */
	void (*leave)(struct relay_followed *followed);
	/* Count the events that were not passed as lost, when nothing will be written any more. Returns 0 or -EBADMSG. */
	int (*end)(struct relay_followed *followed);
	/* Consume the events that were passed, if programs need the room. NULL: nothing is ever consumed. */
	void (*consume)(struct relay_followed *followed);
	/* Load the position up to which programs have written, in units of `number` below. false: it is not known now. */
	bool (*head)(struct relay_followed *followed, uint64_t *number);
	/* Count the events that the memory has refused since it was made: as it was full, they were too large, it was disabled. */
	void (*count_refused)(struct relay_followed *followed, uint64_t records[RELAY_N_REFUSALS]);
	void (*close)(struct relay_followed *followed);

	/* The position of the reader. number: the sub-buffer, and `offset` the offset in it; or the position in the ring. */
	uint64_t number, offset;
	uint64_t ahead;  /* the most by which the result of head() can exceed `number` */
	uint32_t resets; /* as relay_follow.resets */
	uint64_t lost;   /* as relay_follow.lost */
	uint64_t
	    refused; /* of `lost`, those that the memory has refused; and before, `base` were refused that do not count */
	uint64_t base;
	uint64_t n_jumps;   /* as relay_follow.n_jumps */
	uint64_t longest;   /* the most bytes of an event */
	uint64_t n_damaged; /* records with times in the future, which relay_times_next() has replaced */
	struct relay_piece piece;
};

/* Add `followed` as the stream of a CPU. followed->close() is called when the stream is freed, also after an error. Returns
 * as relay_merge_add_source(). */
int relay_merge_add_followed(struct relay_merge *merge, int process, uint32_t cpu, struct relay_followed *followed);

/* --- records with times --- */

/* The most by which a time may exceed the reader's clock, because the clocks of CPUs may differ. */
enum { RELAY_AHEAD_S = 1 };

/* The range of times that the next record of a stream may have; a time outside is replaced. */
struct relay_times {
	const struct relay_traced *traced;
	uint64_t last, latest; /* the time of the previous record; and the latest time, from relay_times_begin() */
};

/* Set `latest`; to be called for each piece. */
void relay_times_begin(struct relay_times *times);

/* Return the time of the next record, in whose memory is `time`. If that is earlier than `last`, `last` is returned,
 * because a clock that differs between CPUs, or any program, may have caused it. If it is later than `latest`, `latest`
 * is returned, and *n_damaged is increased. */
uint64_t relay_times_next(struct relay_times *times, uint64_t time, uint64_t *n_damaged);

#endif
