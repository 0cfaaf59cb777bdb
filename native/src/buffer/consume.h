/* SPDX-License-Identifier: MIT */
/* Consuming: what is there, in order, and whose turn it is. buffer/consume.c tells how. */
#ifndef RELAYFS_BUFFER_CONSUME_H
#define RELAYFS_BUFFER_CONSUME_H

#include "buffer/buffer.h"

/* The reader's lock: 0, or -EBUSY: a living thread has it. A dead one's is taken over. */
int relay_reader_lock(struct rchan_buf *buf);
void relay_reader_unlock(struct rchan_buf *buf);

/* Does another thread that lives have it? */
bool relay_reader_is_held(const struct rchan_buf *buf);

/* What has been consumed, checked as far as it speaks for itself. 0 or -EBADMSG. */
int relay_consumer_read(struct rchan_buf *buf, struct relay_consumer *state);

/* Back to the beginning. The caller has the lock. */
void relay_consumer_clear(struct rchan_buf *buf);

/* Account for what producers overwrote: move `state` to the oldest sub-buffer that stands. 0 or -EBADMSG. */
int relay_consumer_catch_up(struct rchan_buf *buf, struct relay_consumer *state);

/* Has what lies at pos been overwritten, or may have been? */
bool relay_consume_is_lapped(const struct rchan_buf *buf, uint64_t pos);

/* Bytes of holes in what can be read from `state` on, as far as is known: walks along it, if there are any, within what
 * is left of buf->work; the next call goes on from there. */
uint64_t relay_consume_holes(struct rchan_buf *buf, const struct relay_consumer *state);

/*
 * In a format with packets: describe, without consuming, the sub-buffer at whose start `state` is, which then lies behind it.
 * Returns the number of pieces; 0: it is not finished; -EAGAIN: it was overwritten meanwhile; -EINPROGRESS: not all of its
 * holes are known yet, call again; -EBADMSG.
 *
 * start_records  receives how many records were written before it
 */
struct relay_packet;
int relay_consume_look(struct rchan_buf *buf, struct relay_consumer *state, struct relay_packet *packet,
                       uint64_t *start_records, struct relay_span *spans, size_t n_spans);

/* 0: sub-buffer `number`, which was described, is as it was; -EOVERFLOW: it is overwritten; -EBADMSG. */
int relay_consume_stands(struct rchan_buf *buf, uint64_t number);

/* 1: a consumption from `state` would give something; 0; -EBADMSG; -EINPROGRESS: it is not known yet, within what is left
 * of buf->work, and the next call goes on from where this one came to. */
int relay_consume_peek(struct rchan_buf *buf, const struct relay_consumer *state);

#endif
