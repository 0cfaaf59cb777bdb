/* SPDX-License-Identifier: MIT */
/* Consuming: what is there, in order. buffer/consume.c tells how. */
#ifndef RELAYFS_BUFFER_CONSUME_H
#define RELAYFS_BUFFER_CONSUME_H

#include "buffer/consumer.h"

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
