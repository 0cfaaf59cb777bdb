/* SPDX-License-Identifier: MIT */
/*
 * Reading a relay buffer for live.c, by buffer/follow.h: one of a trace, or one with `times`.
 *
 * In a buffer with `times` each record, with its head (struct relay_timed_head), is an event in the format of a trace's
 * buffer. Its time may be wrong, because any program that has the buffer mapped can overwrite the head, or because the
 * clocks of CPUs differ. relay_packet_check() would refuse such an event, so correct_times() corrects the copy.
 */
#include "buffer/head.h"
#include "merge/live.h"

#include <errno.h>
#include <stdlib.h>

struct followed_buffer {
	struct relay_followed followed;
	struct relay_follow follow;
	struct relay_times times; /* times.traced is NULL for a buffer of a trace */
};

/* Copy the position and counts to `followed`, where live.c reads them. */
static void tell(struct followed_buffer *buffer)
{
	buffer->followed.number = buffer->follow.number;
	buffer->followed.offset = buffer->follow.offset;
	buffer->followed.resets = buffer->follow.resets;
	buffer->followed.lost = buffer->follow.lost;
	buffer->followed.refused = buffer->follow.refused;
	buffer->followed.base = buffer->follow.base;
	buffer->followed.n_jumps = buffer->follow.n_jumps;
}

/* Correct the times of all records of the piece, except a last one that is cut. */
static void correct_times(struct followed_buffer *buffer, unsigned char *at)
{
	const struct relay_piece *piece = &buffer->followed.piece;
	const unsigned char *end = at + piece->length;
	struct relay_timed_head head;
	relay_times_begin(&buffer->times);
	if (piece->begin > buffer->times.last && piece->begin <= buffer->times.latest)
		buffer->times.last = piece->begin;
	while ((size_t)(end - at) >= sizeof(head)) {
		memcpy(&head, at, sizeof(head));
		if (head.extended != RELAY_TRACE_EXTENDED || head.length > (size_t)(end - at) - sizeof(head))
			return;
		uint64_t time = (uint64_t)head.time[1] << 32 | head.time[0];
		time = relay_times_next(&buffer->times, time, &buffer->followed.n_damaged);
		head.time[0] = (uint32_t)time;
		head.time[1] = (uint32_t)(time >> 32);
		memcpy(at, &head, sizeof(head));
		at += sizeof(head) + head.length;
	}
}

static int copy(struct relay_followed *followed, void *to, size_t size)
{
	struct followed_buffer *buffer = (struct followed_buffer *)followed;
	int result = relay_follow_copy(&buffer->follow, &followed->piece, to, size);
	tell(buffer);
	if (result == 1 && buffer->times.traced)
		correct_times(buffer, to);
	return result;
}

static void pass(struct relay_followed *followed, size_t bytes, uint64_t n_events)
{
	struct followed_buffer *buffer = (struct followed_buffer *)followed;
	relay_follow_pass(&buffer->follow, &followed->piece, bytes, n_events);
	tell(buffer);
}

static void leave(struct relay_followed *followed)
{
	struct followed_buffer *buffer = (struct followed_buffer *)followed;
	relay_follow_leave(&buffer->follow, &followed->piece);
	tell(buffer);
}

static int end(struct relay_followed *followed)
{
	struct followed_buffer *buffer = (struct followed_buffer *)followed;
	int err = relay_follow_end(&buffer->follow);
	tell(buffer);
	return err;
}

static void consume(struct relay_followed *followed)
{
	relay_follow_consume(&((struct followed_buffer *)followed)->follow, false);
}

static bool head(struct relay_followed *followed, uint64_t *number)
{
	const struct rchan_buf *buf = ((struct followed_buffer *)followed)->follow.buf;
	uint64_t first, second;
	if (relay_head(buf, &first, &second))
		return false;
	*number = relay_pos_number(buf, first);
	return true;
}

static void count_refused(struct relay_followed *followed, uint64_t records[RELAY_N_REFUSALS])
{
	relay_lost_by_cause(((struct followed_buffer *)followed)->follow.buf, records);
}

static void close_buffer(struct relay_followed *followed)
{
	free(followed);
}

int relay_merge_add_buffer(struct relay_merge *merge, int process, uint32_t cpu, struct rchan_buf *buf, bool is_new)
{
	struct followed_buffer *buffer;
	if (!buf->packets && !buf->is_timed)
		return -EINVAL;
	buffer = calloc(1, sizeof(*buffer));
	if (!buffer)
		return -ENOMEM;
	buffer->followed = (struct relay_followed){.copy = copy,
	                                           .pass = pass,
	                                           .leave = leave,
	                                           .end = end,
	                                           .consume = consume,
	                                           .head = head,
	                                           .count_refused = count_refused,
	                                           .close = close_buffer,
	                                           .ahead = buf->n_subbufs,
	                                           .longest = buf->subbuf_size};
	buffer->times.traced = buf->is_timed ? relay_merge_process(merge, process) : NULL;
	relay_follow_start(&buffer->follow, buf, is_new);
	tell(buffer);
	return relay_merge_add_followed(merge, process, cpu, &buffer->followed);
}
