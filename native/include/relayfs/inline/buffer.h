/* SPDX-License-Identifier: MIT */
/* Writing a record into a relay buffer, for <relayfs/producer.h> and the library: the fast path, for a record that fits
 * behind another one in its sub-buffer. */
#ifndef RELAYFS_INLINE_BUFFER_H
#define RELAYFS_INLINE_BUFFER_H

#include <errno.h>
#include <relayfs/inline/claims.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Of <relayfs/producer.h>. */
struct rchan;
int relay_write_anyhow(struct rchan *chan, const void *data, size_t length);
int relay_write_wake(struct rchan *chan, unsigned cpu);

/* The first fields of struct rchan_buf. They are constant. */
#define RELAY_INLINE_BUF_MEMBERS                                                                                        \
	struct relay_control *control;                                                                                  \
	unsigned char *data;                                                                                            \
	uint64_t offset_mask;                                                                                           \
	uint64_t subbuf_end;  /* offset at which records must end */                                                    \
	uint64_t index_field; /* the index's bits of a position */                                                      \
	uint64_t index_end;   /* n_subbufs, shifted to these bits */                                                    \
	uint64_t index_scale; /* 2^64 * subbuf_size / (the lowest of these bits) */                                     \
	uint64_t largest;     /* the longest record, bytes */                                                           \
	/* one lap, as a difference of positions, in mode no-overwrite if a sub-buffer begins by a switch       \
	 * alone; otherwise more than any difference */       \
	uint64_t full_lap;                                                                                              \
	/* the longest record that is reserved without a call, less the shortest, which has the length of a         \
	 * struct relay_hole, and 1; 0: none is, as with reserve=visible */   \
	uint64_t n_reserve;                                                                                             \
	/* For events: upper 16 bits of start_clock of the current sub-buffer or an earlier one; a time with the same \
	 * upper bits fits into a short head (buffer/write.h). It is no constant. */ \
	uint64_t epoch;                                                                                                 \
	uint32_t timestamp /* enum relay_timestamp */

struct relay_inline_buf {
	RELAY_INLINE_BUF_MEMBERS;
	struct relay_inline_table table;
};

/* The first fields of struct rchan. */
struct relay_inline_chan {
	struct relay_inline_buf **buf; /* by number */
	/* At RELAY_INLINE_VERSION: the number of buffers in scheme rseq, 0 in the others and with `times`, so that
	 * relay_write() needs one comparison. */
	uint32_t n_rseq[RELAY_INLINE_VERSIONS];
};

__extension__ typedef unsigned __int128 relay_inline_u128;

/* The address of a position. The upper half of the product is the index's number times subbuf_size: no shift by a number of bits
 * that varies. */
RELAY_INLINE unsigned char *relay_inline_address(const struct relay_inline_buf *buf, uint64_t pos)
{
	relay_inline_u128 product = (relay_inline_u128)(pos & buf->index_field) * buf->index_scale;
	return buf->data + (uint64_t)(product >> 64) + (pos & buf->offset_mask);
}

/* Find the address for a record of `length` bytes, at most buf->largest or 2^32, at `head`. Returns false if it does not fit
 * behind another one there. */
RELAY_INLINE bool relay_inline_place(const struct relay_inline_buf *buf, uint64_t head, size_t length,
                                     unsigned char **to)
{
	uint64_t offset = head & buf->offset_mask, index = head & buf->index_field;
	*to = relay_inline_address(buf, head);
	return offset != 0 && offset + length <= buf->subbuf_end && index < buf->index_end;
}

/*
 * Write a record at `head`, to the address from relay_inline_place(). It copies the record, and stores the record count
 * and head, which are in one cache line with the flags, without a locked instruction or a fence. Returns false: nothing
 * was done.
 */
RELAY_INLINE bool relay_inline_write_at(struct relay_control *control, uint64_t head, unsigned char *to,
                                        const void *data, size_t length, uint32_t cpu)
{
	RELAY_PUBLISHES(&control->head.first);
	return relay_rseq_record(control, head, (head + length) ^ RELAY_LATCH_INDEX, to, data, length, cpu) ==
	       RELAY_RSEQ_DONE;
}

/* True if a reader has to be woken after a record was published. */
RELAY_INLINE bool relay_inline_is_armed(const struct relay_control *control)
{
	/* Relaxed: pairs with relay_arm(), whose membarrier(2) orders this load after the store of the record. */
	return __builtin_expect(__atomic_load_n(&control->flags, __ATOMIC_RELAXED) & RELAY_ARM_RECORD, 0);
}

/* True if the buffer is full, and all that a write can do is to count its record as lost: head is one lap ahead of the
 * reader's sub-buffer. */
RELAY_INLINE bool relay_inline_is_full(const struct relay_inline_buf *buf, const struct relay_control *control,
                                       uint64_t head)
{
	/* Relaxed: no store to the data depends on it. */
	uint64_t consumed = __atomic_load_n(&control->consumed, __ATOMIC_RELAXED) & ~buf->offset_mask;
	return (head & ~RELAY_LATCH_INDEX) - consumed == buf->full_lap &&
	       !(__atomic_load_n(&control->flags, __ATOMIC_RELAXED) & RELAY_STOPPED);
}

/*
 * relay_write(). That relay_write_anyhow() and relay_write_wake() are called last saves registers where this is not inlined.
 */
RELAY_INLINE int relay_inline_write(struct rchan *chan, const void *data, size_t length)
{
	const struct relay_inline_chan *fast = (const struct relay_inline_chan *)(const void *)chan;
	uint32_t cpu = relay_rseq_cpu();
	if (__builtin_expect(
		!fast || cpu >= fast->n_rseq[RELAY_INLINE_VERSION] || length - 1 >= RELAY_INLINE_LENGTH_MAX, 0))
		return relay_write_anyhow(chan, data, length);
	const struct relay_inline_buf *buf = fast->buf[cpu];
	struct relay_control *control = buf->control;
	unsigned char *to;
	/* Relaxed: only this CPU writes it, and the section checks that it did not change. */
	uint64_t head = __atomic_load_n(&control->head.first, __ATOMIC_RELAXED);
	if (__builtin_expect(relay_inline_place(buf, head, length, &to), 1)) {
		if (__builtin_expect(relay_inline_write_at(control, head, to, data, length, cpu), 1))
			return relay_inline_is_armed(control) ? relay_write_wake(chan, cpu) : 0;
	} else if (relay_inline_is_full(buf, control, head) && length <= buf->largest &&
	           relay_rseq_tally(&control->lost_full, length, cpu) == RELAY_RSEQ_DONE) {
		return -ENOSPC;
	}
	return relay_write_anyhow(chan, data, length);
}

#ifdef __cplusplus
}
#endif
#endif
