/* SPDX-License-Identifier: MIT */
/* Reading and consuming the data of a buffer. buffer/consume.c describes how; the functions for file servers
 * and tools are in <relayfs/store.h>. */
#ifndef RELAYFS_BUFFER_CONSUME_H
#define RELAYFS_BUFFER_CONSUME_H

#include "buffer/consumer.h"

/* The bytes of holes in the data from `state` on, as far as they are known. If there are holes, it walks along the
 * data until buf->work is used up; the next call continues there. */
uint64_t relay_consume_holes(struct rchan_buf *buf, const struct relay_consumer *state);

/*
 * In a format with packets: describe the sub-buffer at whose start `state` is, without consuming it, and move `state`
 * to its end. The data are in `spans`, the first of which is *packet. Returns the number of spans used; 0: the
 * sub-buffer is not finished; -EAGAIN: it was overwritten meanwhile; -EINPROGRESS: not all of its holes are known
 * yet, call again; -EBADMSG.
 *
 * start_records  receives how many records were written before the sub-buffer
 */
struct relay_packet;
int relay_consume_look(struct rchan_buf *buf, struct relay_consumer *state, struct relay_packet *packet,
                       uint64_t *start_records, struct relay_span *spans, size_t n_spans);

/* Returns 0 if sub-buffer `number`, which the caller has read, was not overwritten meanwhile; -EOVERFLOW: it was,
 * or may have been; -EBADMSG. */
int relay_consume_stands(struct rchan_buf *buf, uint64_t number);

/* Returns 1 if a consumption from `state` would return data; 0 if not; -EBADMSG; -EINPROGRESS: buf->work was used up
 * before that was known, and the next call continues there. */
int relay_consume_peek(struct rchan_buf *buf, const struct relay_consumer *state);

#endif
