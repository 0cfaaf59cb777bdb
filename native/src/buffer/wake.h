/* SPDX-License-Identifier: MIT */
/* Waking a buffer's sleeping readers, as base/arm.h describes: a writer makes a system call only if a
 * reader has armed the buffer. */
#ifndef RELAYFS_BUFFER_WAKE_H
#define RELAYFS_BUFFER_WAKE_H

#include "buffer/buffer.h"

/* Wake the readers that have armed one of `bits` (RELAY_ARM_). A tracepoint in a quiet thread wakes nobody. */
void relay_wake(struct rchan_buf *buf, uint32_t bits);

/* Set RELAY_SILENT: from now on writers of this buffer may not wake readers, which therefore poll. */
void relay_silence(struct rchan_buf *buf);

/* Wake the maker's thread, which sleeps on map_seq of the channel's first buffer. */
void relay_wake_maker(struct rchan_buf *first);

/* Wake readers after a record was published. */
static inline void relay_wake_record(struct rchan_buf *buf)
{
	if (relay_inline_is_armed(buf->control))
		relay_wake(buf, RELAY_ARM_RECORD);
}

/* Wake readers after a switch was published. Relaxed: as in relay_inline_is_armed(). */
static inline void relay_wake_switch(struct rchan_buf *buf)
{
	if (__builtin_expect(__atomic_load_n(&buf->control->flags, __ATOMIC_RELAXED) & RELAY_ARMED, 0))
		relay_wake(buf, RELAY_ARMED);
}

#endif
