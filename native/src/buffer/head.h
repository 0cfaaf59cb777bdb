/* SPDX-License-Identifier: MIT */
/* Where a buffer's writers are, and what they have lost. */
#ifndef RELAYFS_BUFFER_HEAD_H
#define RELAYFS_BUFFER_HEAD_H

#include "buffer/buffer.h"

/* Records that were refused, for whatever reason. */
uint64_t relay_lost(const struct rchan_buf *buf);

/* head, consistent and valid; -EBADMSG otherwise. `first` is a position, `second` has the owner in it. */
int relay_head(const struct rchan_buf *buf, uint64_t *first, uint64_t *second);

/* The same for who reads: it is noted what is wrong. */
int relay_head_checked(struct rchan_buf *buf, uint64_t *first, uint64_t *second);

#endif
