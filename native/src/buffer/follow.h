/* SPDX-License-Identifier: MIT */
/* Reading a buffer of a trace, or one with `times`, while programs write to it. Only relay_follow_consume() consumes. See
 * buffer/follow.c. */
#ifndef RELAYFS_BUFFER_FOLLOW_H
#define RELAYFS_BUFFER_FOLLOW_H

#include "buffer/buffer.h"

/* The position of such a reader, and what it has counted. */
struct relay_follow {
	struct rchan_buf *buf;
	uint64_t number, offset; /* start of the next piece: sub-buffer, and offset in it; 0: at its first record */
	uint64_t before, here;   /* records passed: before this sub-buffer, and in it */
	uint64_t base, lost;     /* refused records that do not count, from before the first piece; lost records */
	uint64_t refused;        /* of `lost`, those that the buffer has refused */
	uint64_t n_jumps;        /* how often records were passed over, because they were overwritten or consumed */
	uint64_t holes;          /* relay_n_holes() when this reader was not behind the consumer */
	uint32_t resets;         /* relay_control.resets, to which the other fields belong */
	bool has_begun;          /* `before` and `base` are set */
};

/* A stretch of records without a hole between them, or the first part of it. */
struct relay_piece {
	uint64_t number, offset; /* start: sub-buffer, and offset in it */
	uint64_t end_number, end_offset;
	size_t length;
	uint64_t begin; /* start_clock of the sub-buffer */
	bool has_more;  /* there were more records behind it */
};

/* Begin with the oldest record. is_new: count the records that were overwritten or refused before as lost. */
void relay_follow_start(struct relay_follow *follow, struct rchan_buf *buf, bool is_new);

/*
 * Copy the next piece, at most `size` bytes of it; its last record may then be cut. Records that other readers have
 * consumed are copied, too, until they are overwritten. Returns 1; 0: there is none; -EAGAIN: it was overwritten at
 * each try, or buf->work was used up by the holes and empty sub-buffers before it; -EBADMSG; -EINVAL: the buffer
 * has neither packets nor `times`. follow->lost is updated unless an error is returned.
 */
int relay_follow_copy(struct relay_follow *follow, struct relay_piece *piece, void *to, size_t size);

/* Move behind the first `bytes` bytes of a piece that was copied; `records` records are in them. */
void relay_follow_pass(struct relay_follow *follow, const struct relay_piece *piece, size_t bytes, uint64_t records);

/* Move to the sub-buffer after that of the piece. The records that were not passed there count as lost. */
void relay_follow_leave(struct relay_follow *follow, const struct relay_piece *piece);

/* Count the records that were not passed as lost, when nothing will be written any more. Returns 0 or -EBADMSG. */
int relay_follow_end(struct relay_follow *follow);

/* In mode no-overwrite, consume the sub-buffers that were passed; unless `all`, only if half of the buffer or more is
 * unconsumed. Returns 0, or as relay_buf_subbufs_consumed(). */
int relay_follow_consume(struct relay_follow *follow, bool all);

#endif
