/* SPDX-License-Identifier: MIT */
/* Writing in two steps. buffer/reserve.c tells how; commit and discard stand in <relayfs/store.h>. */
#ifndef RELAYFS_BUFFER_RESERVE_H
#define RELAYFS_BUFFER_RESERVE_H

#include "buffer/buffer.h"

/* As relay_buf_reserve(), on the buffer's CPU: else RELAY_WRONG_CPU. will_retry: -ENOSPC is not counted. */
int relay_reserve_here(struct rchan_buf *buf, size_t length, bool will_retry, void **to);

#endif
