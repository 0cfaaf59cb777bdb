/* SPDX-License-Identifier: MIT */
/* Reading a buffer of a trace as it is written, and consuming nothing. buffer/follow.c tells how. */
#ifndef RELAYFS_BUFFER_FOLLOW_H
#define RELAYFS_BUFFER_FOLLOW_H

#include "buffer/buffer.h"

/* The position of such a reader, and what it has counted. */
struct relay_follow {
	struct rchan_buf *buf;
	uint64_t number,
	    offset; /* where the next piece begins: in which sub-buffer, and there; 0: with its first record */
	uint64_t before, here; /* records that were passed: up to this sub-buffer, and in it */
	uint64_t base, lost;   /* records that were lost before the first piece, and since, as the last look found */
	uint64_t holes;        /* that the consumer had passed when it had not come to this sub-buffer */
	uint32_t resets;       /* the buffer's */
	bool has_begun;        /* `before` and `base` are set */
};

/* A stretch of records without a hole between them, or the first part of it. */
struct relay_piece {
	uint64_t number, offset; /* where they are */
	uint64_t end_number, end_offset;
	size_t length;
	uint64_t begin; /* when their sub-buffer began, in ticks */
	bool has_more;  /* there were more records behind it */
};

/* Begin with the oldest record. is_new: count the records that have been overwritten or refused by now as lost. */
void relay_follow_start(struct relay_follow *follow, struct rchan_buf *buf, bool is_new);

/*
 * Copy the next piece, at most `size` bytes of it; its last record may then be cut. Records that other readers have consumed are
 * copied, too, until they are overwritten.
 *
 * 1; 0: there is none; -EAGAIN: it was overwritten at each try, or the way to it over holes and empty sub-buffers is longer than one
 * call may go; -EBADMSG. follow->lost is updated unless an error is returned.
 */
int relay_follow_copy(struct relay_follow *follow, struct relay_piece *piece, void *to, size_t size);

/* Move behind the first `bytes` of a piece that was copied, which are `records` records. */
void relay_follow_pass(struct relay_follow *follow, const struct relay_piece *piece, size_t bytes, uint64_t records);

/* Move to the sub-buffer after the piece's: the records that are left in the piece's count as lost. */
void relay_follow_leave(struct relay_follow *follow, const struct relay_piece *piece);

/* Nothing will be written or passed any more: count the records that were not passed as lost. 0 or -EBADMSG. */
int relay_follow_end(struct relay_follow *follow);

/* In mode no-overwrite, consume the sub-buffers that were passed. all: also if less than half of the buffer is unconsumed. 0, or as
 * relay_buf_subbufs_consumed(). */
int relay_follow_consume(struct relay_follow *follow, bool all);

#endif
