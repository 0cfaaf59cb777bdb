/* SPDX-License-Identifier: MIT */
/*
 * Reading a ring with `times` for live.c, by ring/follow.h. copy() puts a struct relay_timed_head before each record, which
 * makes it an event as in a relay buffer with `times`. A record that is longer than the room for the piece is copied in
 * part, and copied again when grow() in live.c has made the room larger.
 */
#include "merge/live.h"
#include "ring/follow.h"

#include <errno.h>
#include <stdlib.h>

struct followed_ring {
	struct relay_followed followed;
	struct relay_ring_follow follow;
	struct relay_times times;
	bool is_cut; /* the piece is the first part of the record `cut` */
	struct relay_ring_copy cut;
	uint64_t n_left; /* records that leave() has skipped */
};

/* Copy the position and the count to `followed`, where live.c reads them. */
static void tell(struct followed_ring *ring)
{
	ring->followed.number = ring->follow.counts.position;
	ring->followed.lost = relay_ring_follow_lost(&ring->follow) + ring->n_left;
	ring->followed.n_jumps = ring->follow.counts.missed + ring->follow.foreign;
	ring->followed.base = ring->follow.refused;
	/* What was missed is no more than what is lost, unless another program stores wrong counts. */
	const uint64_t others = ring->n_left + ring->follow.counts.missed + (ring->follow.foreign > 0);
	ring->followed.refused = ring->followed.lost > others ? ring->followed.lost - others : 0;
}

static void put_head(unsigned char *to, uint64_t time, size_t length)
{
	struct relay_timed_head head = {.extended = RELAY_TRACE_EXTENDED,
	                                .time = {(uint32_t)time, (uint32_t)(time >> 32)},
	                                .length = (uint32_t)length};
	memcpy(to, &head, sizeof(head));
}

/* Copy whole records until there are no more, or no more room; or the first part of one. Returns the last result of
 * relay_ring_follow_copy(). */
static int copy_records(struct followed_ring *ring, unsigned char *to, size_t size)
{
	struct relay_piece *piece = &ring->followed.piece;
	uint32_t work = RELAY_RING_WORK;
	while (size - piece->length > sizeof(struct relay_timed_head)) {
		struct relay_ring_copy record;
		unsigned char *at = to + piece->length;
		size_t room = size - piece->length - sizeof(struct relay_timed_head);
		int result =
		    relay_ring_follow_copy(&ring->follow, &record, at + sizeof(struct relay_timed_head), room, &work);
		if (result != 1)
			return result;
		bool is_cut = record.length > room;
		if (is_cut && piece->length)
			return 1;
		/* A record that is cut is copied again, or skipped, which live.c counts. */
		uint64_t ignored = 0, *n_damaged = is_cut ? &ignored : &ring->followed.n_damaged;
		put_head(at, relay_times_next(&ring->times, record.time, n_damaged), record.length);
		if (is_cut) {
			ring->is_cut = true;
			ring->cut = record;
			piece->length = size;
			return 1;
		}
		piece->length += sizeof(struct relay_timed_head) + record.length;
		relay_ring_follow_pass(&ring->follow, &record);
	}
	return 1;
}

static int copy(struct relay_followed *followed, void *to, size_t size)
{
	struct followed_ring *ring = (struct followed_ring *)followed;
	relay_times_begin(&ring->times);
	ring->is_cut = false;
	followed->piece = (struct relay_piece){.length = 0};
	int result = copy_records(ring, to, size);
	followed->piece.has_more = result != 0;
	tell(ring);
	return followed->piece.length ? 1 : result;
}

/* Does nothing, because copy() has passed the whole records of the piece already. */
static void pass(struct relay_followed *followed, size_t bytes, uint64_t n_events)
{
	(void)followed;
	(void)bytes;
	(void)n_events;
}

static void leave(struct relay_followed *followed)
{
	struct followed_ring *ring = (struct followed_ring *)followed;
	if (ring->is_cut) {
		relay_ring_follow_pass(&ring->follow, &ring->cut);
		ring->n_left++;
	}
	tell(ring);
}

static int end(struct relay_followed *followed)
{
	tell((struct followed_ring *)followed);
	return 0;
}

static bool head(struct relay_followed *followed, uint64_t *number)
{
	/* 1 less than the end of all reservations, because a position counts as passed only when the reader's exceeds it. */
	*number = relay_ring_reserved(((struct followed_ring *)followed)->follow.ring) - 1;
	return true;
}

static void count_refused(struct relay_followed *followed, uint64_t records[RELAY_N_REFUSALS])
{
	relay_ring_lost_by_cause(((struct followed_ring *)followed)->follow.ring, records);
}

static void close_ring(struct relay_followed *followed)
{
	free(followed);
}

int relay_merge_add_ring(struct relay_merge *merge, int process, uint32_t cpu, struct relay_ring *ring)
{
	struct followed_ring *followed;
	if (!ring->time_bytes || ring->remote)
		return -EINVAL;
	followed = calloc(1, sizeof(*followed));
	if (!followed)
		return -ENOMEM;
	followed->followed = (struct relay_followed){.copy = copy,
	                                             .pass = pass,
	                                             .leave = leave,
	                                             .end = end,
	                                             .head = head,
	                                             .count_refused = count_refused,
	                                             .close = close_ring,
	                                             .ahead = ring->size,
	                                             .longest = ring->size + sizeof(struct relay_timed_head)};
	followed->times.traced = relay_merge_process(merge, process);
	int err = relay_ring_follow_start(&followed->follow, ring);
	if (err) {
		free(followed);
		return err;
	}
	tell(followed);
	return relay_merge_add_followed(merge, process, cpu, &followed->followed);
}
