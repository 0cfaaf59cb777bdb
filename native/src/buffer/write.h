/* SPDX-License-Identifier: MIT */
/* Write, switch and stop one buffer. buffer/write.c tells how; the fast path stands here to be inlined. */
#ifndef RELAYFS_BUFFER_WRITE_H
#define RELAYFS_BUFFER_WRITE_H

#include "buffer/claims.h"
#include "buffer/subbuf_start.h"
#include "buffer/tx.h"
#include "buffer/wake.h"

#include <relayfs/trace_store.h>
#include <string.h>

/*
 * The head of an event (trace_store.h), with which a record begins that is given together with one of these. The writer makes it
 * out of relay_clock_now() when the record's position was taken, so that times are in the order of positions; the record's
 * other bytes are read at `rest`, none at the address of the record, which may be NULL.
 *
 *     is_short   |id 16|time 48|              readers know the uppermost 16 bits from the start of the sub-buffer, so these must
 *                                             be the same
 *     otherwise  |extended 16|id 16|time 64|
 */
struct relay_record_time {
	void *rest; /* what the record has behind its first 8 bytes, in the caller's memory */
	bool is_short;
	uint16_t id;
	uint64_t clock; /* receives the time */
};

/* A short head cannot tell the time: write the record again, with a long one. Nothing was written or counted. */
enum { RELAY_TIME_IS_LONG = 3 };

/*
 * One record in a buffer that is written from several CPUs: schemes lockless and locking. time: NULL, it has none.
 * will_retry: as relay_try_write() has it, -ENOSPC is not counted.
 */
int relay_write_shared(struct rchan_buf *buf, const void *data, size_t length, struct relay_record_time *time,
                       bool will_retry);

/* Return the first 8 bytes of the record; the other 4 of a long head are stored behind them in the caller's memory. */
static inline uint64_t relay_record_stamp(const struct relay_record_time *time)
{
	uint32_t high = (uint32_t)(time->clock >> 32);
	if (__builtin_expect(time->is_short, 1))
		return time->clock << RELAY_TRACE_ID_BITS | time->id;
	memcpy(time->rest, &high, sizeof(high));
	return time->clock << 32 | (uint32_t)time->id << RELAY_TRACE_ID_BITS | RELAY_TRACE_EXTENDED;
}

/* Space for one record. The caller says the first four. */
struct relay_slot {
	bool locked;               /* the caller has the lock of scheme locking */
	bool stamped;              /* it wants to know when */
	bool is_short;             /* the time must fit a short one */
	bool will_retry;           /* -ENOSPC is not counted */
	struct relay_claim *claim; /* which keeps it; NULL: it counts as written at once */
	void *to;
	uint64_t clock; /* relay_clock_now() when it was reserved: in the order of positions */
};

/* Reserve `length` bytes, in any scheme, for a claim that is the caller's then; or for none. 0, or as relay_write(). */
int relay_reserve_claimed(struct rchan_buf *buf, size_t length, struct relay_slot *slot);
int relay_reserve_visible(struct rchan_buf *buf, size_t length, struct relay_slot *slot);

/* Is the sub-buffer of this position left? */
static inline bool relay_has_moved_on(const struct rchan_buf *buf, uint64_t pos)
{
	/* Relaxed: whoever needs to see more asks for a fence. */
	uint64_t head = __atomic_load_n(&buf->control->head.first, __ATOMIC_RELAXED);
	return ((head ^ pos) & RELAY_POSITION_MASK) >> buf->offset_bits != 0;
}

/* One record, all cases of scheme rseq; time and will_retry as above. -ENOTSUP: this thread has no rseq. */
int relay_write_rseq_slow(struct rchan_buf *buf, const void *data, size_t length, struct relay_record_time *time,
                          bool will_retry);

/* Has a full no-overwrite buffer come to rest where the reader still is, one lap behind? The short form of what
 * buffer/write.c asks, for the loop of a producer that outruns its reader. */
static inline bool relay_is_full(const struct rchan_buf *buf, uint64_t head)
{
	/* Relaxed: nothing is stored on the strength of it. */
	uint64_t consumed = __atomic_load_n(&buf->control->consumed, __ATOMIC_RELAXED) & ~buf->offset_mask;
	uint32_t flags = __atomic_load_n(&buf->control->flags, __ATOMIC_RELAXED);
	if (flags & RELAY_STOPPED || buf->mode != RELAY_NO_OVERWRITE)
		return false;
	if (__builtin_expect(!buf->begins, 1))
		return (head & ~RELAY_LATCH_INDEX) - consumed == buf->lap;
	return !relay_has_begun(buf, head) && relay_is_settled(buf, head);
}

/* What the claim kept is a record. */
static inline void relay_commit_claim(struct rchan_buf *buf, struct relay_claim *claim)
{
	uint64_t pos = relay_claim_position(claim);
	relay_claim_release(buf, claim);
	/* It may have been what kept a finished sub-buffer from its readers. */
	if (__builtin_expect(relay_has_moved_on(buf, pos), 0))
		relay_wake_switch(buf);
	else
		relay_wake_record(buf);
}

/*
 * The fast path: a record that fits behind another one in a sub-buffer. Per record: load head, flags (both
 * in one line), the geometry; copy; store the record count and head. No locked instruction, no fence.
 *
 * 0; -ENOSPC: it is full, and the record is counted as lost unless will_retry; RELAY_NOT_HERE: relay_write_rseq_slow() has to see to it.
 */
enum { RELAY_NOT_HERE = 2 };

static inline __attribute__((always_inline)) int relay_write_rseq_here(struct rchan_buf *buf, const void *data,
                                                                       size_t length, struct relay_record_time *time,
                                                                       bool will_retry)
{
	struct relay_control *control = buf->control;
	/* Relaxed: only this CPU writes it, and the section checks that it did not change. */
	uint64_t head = __atomic_load_n(&control->head.first, __ATOMIC_RELAXED);
	uint64_t offset = relay_pos_offset(buf, head), index = relay_pos_index(buf, head);
	if (__builtin_expect(length - 1 >= buf->largest, 0))
		return RELAY_NOT_HERE;
	/* 1 <= offset <= subbuf_end - length, in one comparison */
	if (__builtin_expect(offset - 1 < buf->subbuf_end - length && index < buf->n_subbufs, 1)) {
		unsigned char *to = buf->data + index * buf->subbuf_size + offset;
		uint64_t next = (head + length) ^ RELAY_LATCH_INDEX;
		if (time) {
			time->clock = relay_clock_now(buf->timestamp);
			/* Relaxed: the sub-buffer at head began no earlier than the one that set it. */
			if (__builtin_expect(time->is_short && time->clock >> RELAY_TRACE_TIME_BITS !=
			                                           __atomic_load_n(&buf->epoch, __ATOMIC_RELAXED),
			                     0))
				return RELAY_NOT_HERE;
		}
		enum relay_rseq_result result =
		    time ? relay_rseq_stamped_record(control, head, next, to, relay_record_stamp(time), time->rest,
		                                     length - RELAY_TRACE_HEAD_BYTES, buf->cpu)
			 : relay_rseq_record(control, head, next, to, data, length, buf->cpu);
		if (__builtin_expect(result == RELAY_RSEQ_DONE, 1)) {
			relay_wake_record(buf);
			return 0;
		}
	} else if (relay_is_full(buf, head) &&
	           (will_retry || relay_rseq_tally(&control->lost_full, length, buf->cpu) == RELAY_RSEQ_DONE)) {
		return -ENOSPC;
	}
	return RELAY_NOT_HERE;
}

/* One record, all cases. -ENOTSUP, RELAY_WRONG_CPU, or as relay_write(). */
static inline __attribute__((always_inline)) int relay_write_rseq(struct rchan_buf *buf, const void *data,
                                                                  size_t length, struct relay_record_time *time,
                                                                  bool will_retry)
{
	int err = relay_write_rseq_here(buf, data, length, time, will_retry);
	if (__builtin_expect(err != RELAY_NOT_HERE, 1))
		return err;
	return relay_write_rseq_slow(buf, data, length, time, will_retry);
}

#endif
