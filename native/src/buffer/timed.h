/* SPDX-License-Identifier: MIT */
/* Records with their times (option `times`): struct relay_timed_head is before each. See buffer/timed.c. */
#ifndef RELAYFS_BUFFER_TIMED_H
#define RELAYFS_BUFFER_TIMED_H

#include "buffer/buffer.h"

/* Write a record with its head, in any scheme. Returns as relay_write_rseq(). */
int relay_timed_write(struct rchan_buf *buf, const void *data, size_t length, bool will_retry);

/* Reserve a record, and store its head before it; *to receives the address of the record. The caller has to confirm the
 * claim's reservation. Returns as relay_reserve_claimed(). */
int relay_timed_reserve(struct rchan_buf *buf, size_t length, bool will_retry, struct relay_claim **claim, void **to);

/*
 * As relay_consume_begin(), but with `times` the spans hold whole records with their heads: at most `most` records (0: any
 * number), which have together at most `size` bytes without the heads. -EMSGSIZE: the first record is longer.
 */
int relay_consume_whole(struct rchan_buf *buf, size_t size, size_t most, struct relay_span *spans, size_t n_spans,
                        size_t *total);

/* Plan to consume only the first `limit` bytes of what relay_consume_begin() has returned. false: they were overwritten
 * meanwhile. */
bool relay_consume_shorten(struct rchan_buf *buf, size_t limit, struct relay_span *spans, int *n_spans, size_t *total);

/*
 * Copy whole records from spans, without their heads, up to `size` bytes. is_cut: the last record may extend beyond the
 * last span. Returns the number of bytes; *raw is this number with the heads.
 */
struct relay_span;
size_t relay_timed_take(const struct relay_span *spans, size_t n, bool is_cut, void *to, size_t size, size_t *raw);

/* Return the bytes of the whole records with valid heads that a span begins with, and in *n their number. */
size_t relay_timed_whole(const struct relay_span *span, uint64_t *n);

/* Begin to consume the next piece: all data up to the next hole or the sub-buffer's end; with `times`, one record without
 * its head. time: receives the time in the head, 0 if there is no valid one; or NULL. Returns as relay_consume_begin(). */
int relay_consume_piece(struct rchan_buf *buf, struct relay_span *piece, uint64_t *time);

#endif
