/* SPDX-License-Identifier: MIT */
/* Writing records to one buffer. The fast path is inline; buffer/write.c has the rest. */
#ifndef RELAYFS_BUFFER_WRITE_H
#define RELAYFS_BUFFER_WRITE_H

#include "buffer/claims.h"
#include "buffer/subbuf_start.h"
#include "buffer/tx.h"
#include "buffer/wake.h"

#include <relayfs/inline/event.h>
#include <string.h>

/*
 * The first bytes of an event (trace_store.h). A write function that gets this struct writes these bytes and those at
 * `rest`, and ignores its parameter `data`. It reads relay_clock_now() when it knows the position of the record, so
 * that times are in the order of positions.
 *
 *     is_short   |id 16|time 48|              the upper 16 bits of the time must be those of the sub-buffer's start
 *     otherwise  |extended 16|id 16|time 64|
 */
struct relay_record_time {
	void *rest; /* the bytes of the record after its first 8, in the caller's memory */
	bool is_short;
	uint16_t id;
	uint64_t clock; /* receives the time */
};

/* A short head has too few bits for the time. Nothing was written or counted; the caller has to use a long head. */
enum { RELAY_TIME_IS_LONG = 3 };

/*
 * Write one record in scheme lockless or locking. time: NULL if the record has none; will_retry: do not count -ENOSPC as
 * a loss. Returns 0, RELAY_TIME_IS_LONG, or as relay_write().
 */
int relay_write_shared(struct rchan_buf *buf, const void *data, size_t length, struct relay_record_time *time,
                       bool will_retry);

/* Return the first 8 bytes of the record, and store the other 4 bytes of a long head at time->rest. */
static inline uint64_t relay_record_stamp(const struct relay_record_time *time)
{
	uint32_t high = (uint32_t)(time->clock >> 32);
	if (__builtin_expect(time->is_short, 1))
		return time->clock << RELAY_TRACE_ID_BITS | time->id;
	memcpy(time->rest, &high, sizeof(high));
	return time->clock << 32 | (uint32_t)time->id << RELAY_TRACE_ID_BITS | RELAY_TRACE_EXTENDED;
}

/*
 * Records that lie one after the other in the caller's memory can be written together, in one section or as one
 * reservation, if the buffer has scheme rseq or lockless and its records have no heads. In scheme lockless they differ from
 * single records if their writer dies: then all of them are torn.
 *
 * relay_together_room()   how many bytes fit behind the last record, at most RELAY_TOGETHER_MAX. 0: none, because a
 *                         sub-buffer has to begin first, or records would be refused, or the buffer is another one
 * relay_write_together()  write n records, of `length` bytes together. False: there is not so much room, others write at
 *                         the same time, or the section was aborted; nothing was done or counted, and the caller writes
 *                         one record alone
 */
enum { RELAY_TOGETHER_MAX = 4096 };
size_t relay_together_room(const struct rchan_buf *buf);
bool relay_write_together(struct rchan_buf *buf, const void *data, size_t length, uint64_t n);

/* A reservation of one record. The caller sets the first four fields. */
struct relay_slot {
	bool locked;               /* the caller has the lock of scheme locking */
	bool stamped;              /* set `clock` */
	bool is_short;             /* fail with RELAY_TIME_IS_LONG if a short head has too few bits for `clock` */
	bool will_retry;           /* -ENOSPC is not counted */
	struct relay_claim *claim; /* NULL: readers see the record at once */
	void *to;                  /* its address */
	uint64_t clock;            /* relay_clock_now() when it was reserved: in the order of positions */
};

/* Reserve `length` bytes in any scheme: with a claim, which the caller has to release, or without one. Return 0,
 * RELAY_TIME_IS_LONG, or as relay_write(). */
int relay_reserve_claimed(struct rchan_buf *buf, size_t length, struct relay_slot *slot);
int relay_reserve_visible(struct rchan_buf *buf, size_t length, struct relay_slot *slot);

/* True if head has left the sub-buffer of this position. */
static inline bool relay_has_moved_on(const struct rchan_buf *buf, uint64_t pos)
{
	/* Relaxed: a caller that needs an order has a fence or lock of its own. */
	uint64_t head = __atomic_load_n(&buf->control->head.first, __ATOMIC_RELAXED);
	return ((head ^ pos) & RELAY_POSITION_MASK) >> buf->offset_bits != 0;
}

/* Write one record in scheme rseq, in any case; time and will_retry as above. Returns as relay_write_rseq(). */
int relay_write_rseq_slow(struct rchan_buf *buf, const void *data, size_t length, struct relay_record_time *time,
                          bool will_retry);

/* True if the buffer is full in mode no-overwrite. A quick check for producers that are faster than the reader;
 * relay_buf_try_reserve() covers all cases. */
static inline bool relay_is_full(const struct rchan_buf *buf, uint64_t head)
{
	if (__builtin_expect(!buf->begins, 1))
		return relay_inline_is_full(&buf->fast, buf->control, head);
	return buf->mode == RELAY_NO_OVERWRITE && !relay_has_begun(buf, head) && relay_is_settled(buf, head) &&
	       !(__atomic_load_n(&buf->control->flags, __ATOMIC_RELAXED) & RELAY_STOPPED);
}

/* Wake readers after the record at pos was committed. */
static inline void relay_wake_commit(struct rchan_buf *buf, uint64_t pos)
{
	/* Relaxed: as in relay_inline_is_armed(). */
	if (__builtin_expect(!(__atomic_load_n(&buf->control->flags, __ATOMIC_RELAXED) & RELAY_ARMED), 1))
		return;
	/* If the sub-buffer is finished, its readers may have waited for this record only. */
	if (relay_has_moved_on(buf, pos))
		relay_wake_switch(buf);
	else
		relay_wake_record(buf);
}

/* Commit the record of a claim, and wake readers. */
static inline void relay_commit_claim(struct rchan_buf *buf, struct relay_claim *claim)
{
	uint64_t pos = relay_claim_position(claim);
	relay_claim_release(buf, claim);
	relay_wake_commit(buf, pos);
}

/* Write an event with a short head at `head` as relay_inline_write() writes a record. False: nothing was done. */
static inline __attribute__((always_inline)) bool relay_write_event_here(struct rchan_buf *buf, uint64_t head,
                                                                         unsigned char *to, size_t length,
                                                                         struct relay_record_time *time)
{
	if (__builtin_expect(!time->is_short, 0))
		return false;
	time->clock = relay_inline_event_at(&buf->fast, head, to, time->id, time->rest, length - RELAY_TRACE_HEAD_BYTES,
	                                    buf->cpu);
	return time->clock != 0;
}

/*
 * The fast path, for a record that fits behind another one in a sub-buffer, and for one that is refused. Returns 0;
 * -ENOSPC: the buffer is full, and the record is counted as lost unless will_retry; RELAY_NOT_HERE: nothing was done,
 * and relay_write_rseq_slow() has to be called.
 */
enum { RELAY_NOT_HERE = 2 };

static inline __attribute__((always_inline)) int relay_write_rseq_here(struct rchan_buf *buf, const void *data,
                                                                       size_t length, struct relay_record_time *time,
                                                                       bool will_retry)
{
	/* Relaxed: only this CPU writes it, and the section checks that it did not change. */
	uint64_t head = __atomic_load_n(&buf->control->head.first, __ATOMIC_RELAXED);
	unsigned char *to;
	if (__builtin_expect(length - 1 >= buf->largest, 0))
		return RELAY_NOT_HERE;
	if (__builtin_expect(relay_inline_place(&buf->fast, head, length, &to), 1)) {
		bool is_written = time ? relay_write_event_here(buf, head, to, length, time)
		                       : relay_inline_write_at(buf->control, head, to, data, length, buf->cpu);
		if (__builtin_expect(is_written, 1)) {
			relay_wake_record(buf);
			return 0;
		}
	} else if (relay_is_full(buf, head) &&
	           (will_retry || relay_rseq_tally(&buf->control->lost_full, length, buf->cpu) == RELAY_RSEQ_DONE)) {
		return -ENOSPC;
	}
	return RELAY_NOT_HERE;
}

/* Write one record in scheme rseq. -ENOTSUP: this thread has no rseq; RELAY_WRONG_CPU; or as relay_write_shared(). */
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
