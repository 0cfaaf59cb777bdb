/* SPDX-License-Identifier: MIT */
/* Wake sleeping readers; no system call unless one has armed the buffer. base/arm.h tells how. */
#ifndef RELAYFS_BUFFER_WAKE_H
#define RELAYFS_BUFFER_WAKE_H

#include "buffer/buffer.h"

/* Wake those that armed one of `bits`. */
void relay_wake(struct rchan_buf *buf, uint32_t bits);

/* From now on writers of this buffer may wake nobody. */
void relay_silence(struct rchan_buf *buf);

/* Alert the thread of the process that made the channel; `first` is its buffer 0. */
void relay_wake_maker(struct rchan_buf *first);

/* After a record was published. */
static inline void relay_wake_record(struct rchan_buf *buf)
{
	/* Plain and unfenced: the reader that arms fences this CPU with membarrier(2) before it looks again. */
	if (__builtin_expect(__atomic_load_n(&buf->control->flags, __ATOMIC_RELAXED) & RELAY_ARM_RECORD, 0))
		relay_wake(buf, RELAY_ARM_RECORD);
}

/* After a switch was published. */
static inline void relay_wake_switch(struct rchan_buf *buf)
{
	if (__builtin_expect(__atomic_load_n(&buf->control->flags, __ATOMIC_RELAXED) & RELAY_ARMED, 0))
		relay_wake(buf, RELAY_ARMED);
}

#endif
