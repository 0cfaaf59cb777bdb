/* SPDX-License-Identifier: MIT */
/* Writing a record in two steps: reserve it, then commit or discard it. Commit and discard are
 * declared in <relayfs/store.h>. */
#ifndef RELAYFS_BUFFER_RESERVE_H
#define RELAYFS_BUFFER_RESERVE_H

#include "buffer/buffer.h"

/* As relay_buf_reserve(), but returns RELAY_WRONG_CPU if this thread is not on the buffer's CPU (scheme rseq).
 * will_retry: the caller will try again, so -ENOSPC is not counted as a loss. */
int relay_reserve_here(struct rchan_buf *buf, size_t length, bool will_retry, void **to);

#endif
