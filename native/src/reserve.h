/* SPDX-License-Identifier: MIT */
/* Writing in two steps. reserve.c tells how; commit and discard stand in <relayfs/store.h>. */
#ifndef RELAYFS_RESERVE_H
#define RELAYFS_RESERVE_H

#include "buf.h"

/* As relay_buf_reserve(), on the buffer's CPU: else RELAY_WRONG_CPU. */
int relay_reserve_here(struct rchan_buf *buf, size_t length, void **to);

#endif
