/* SPDX-License-Identifier: MIT */
/*
 * Writing one buffer, all that is not the fast path. buffer/try_reserve.c finds where; the schemes differ in how head changes:
 *
 *     rseq      by a restartable section on the buffer's CPU
 *     lockless  by a 16-byte compare-and-swap
 *     locking   in the same way, with a robust lock around the whole write. The lock only lets one writer in at a time: what
 *               becomes of the record of a writer that dies, its claim tells as in lockless
 */
#define _GNU_SOURCE
#include "buffer/write.h"

#include "base/clock.h"
#include "buffer/try_reserve.h"

#include <string.h>

enum {
	/* A section restarted this often is too long for the signals (or the debugger) around it. */
	MAX_ABORTS = 8,
	/* Nobody else changes head on this CPU without an abort of ours: so often only nonsense makes it. */
	MAX_MOVES = 10000
};

/* Can a short time tell this one, in the sub-buffer at pos? */
static bool has_same_epoch(struct rchan_buf *buf, uint64_t pos, uint64_t clock)
{
	uint64_t epoch = clock >> RELAY_TRACE_TIME_BITS;
	/* Relaxed: what begins later than this sub-buffer begins at a later time. */
	uint64_t start = __atomic_load_n(&relay_pos_ledger(buf, pos)->start_clock, __ATOMIC_RELAXED);
	if (start >> RELAY_TRACE_TIME_BITS != epoch)
		return false;
	__atomic_store_n(&buf->epoch, epoch, __ATOMIC_RELAXED);
	return true;
}

/* Read the clock for a record at `pos`, after `pos` was loaded and before the section that checks that head is still there: whoever
 * writes behind it has loaded a later head, and so reads a later clock. false: RELAY_TIME_IS_LONG.
 * Not inlined: relay_write_rseq_slow() would need one register more than there is. */
static __attribute__((noinline)) bool take_time(struct rchan_buf *buf, uint64_t pos, struct relay_record_time *time)
{
	time->clock = relay_clock_now_if_blind(buf->timestamp);
	return !time->is_short || has_same_epoch(buf, pos, time->clock);
}

/* Count a record for which there is no room as lost, unless its producer will try again. */
static int refuse_full(struct rchan_buf *buf, size_t length, bool will_retry)
{
	return will_retry ? -ENOSPC : relay_refuse_full(buf, length);
}

/* The same for any reason: see relay_buf_refuse(). */
static int refuse_tried(struct rchan_buf *buf, enum relay_try tried, size_t length, bool will_retry)
{
	bool is_full = tried == RELAY_TRY_FULL || (tried == RELAY_TRY_BUSY && buf->may_block);
	return is_full && will_retry ? -ENOSPC : relay_buf_refuse(buf, tried, length);
}

/* Reserve `length` bytes for the slot's claim; without one (NULL) they count as written at once. 0, or as
 * relay_write(). */
static int reserve(struct rchan_buf *buf, size_t length, struct relay_slot *slot)
{
	struct relay_claim *claim = slot->claim;
	for (int tries = 0; tries < RELAY_CHANGE_TRIES; tries++) {
		struct relay_tx tx = relay_tx_load(buf, &buf->control->head);
		/* After the look: whoever stops the buffer sets the flag, then changes head. */
		int err = relay_refuse_stopped(buf, length);
		if (err)
			return err;
		enum relay_try tried = relay_buf_try_reserve(buf, &tx, length);
		enum relay_rseq_result result = tried == RELAY_TRY_ABORTED ? RELAY_RSEQ_ABORTED : RELAY_RSEQ_MOVED;
		if (tried >= RELAY_TRY_FULL)
			return refuse_tried(buf, tried, length, slot->will_retry);
		if (tried == RELAY_TRY_HERE) {
			uint64_t pos = tx.expect_first & RELAY_POSITION_MASK;
			uint64_t records = tx.expect_second & RELAY_RECORDS_MASK;
			/* Between the look and the change: who comes next looks later, and so at a later clock. */
			if (slot->stamped)
				slot->clock = relay_clock_now_if_blind(buf->timestamp);
			if (slot->is_short && !has_same_epoch(buf, pos, slot->clock))
				return RELAY_TIME_IS_LONG;
			if (claim)
				relay_claim_state(claim, pos, length, records, 0);
			tx.new_first = pos + length;
			tx.new_second = (records + 1) | (claim ? relay_claim_owner_bits(buf, claim) : 0);
			tx.refuse = RELAY_STOPPED;
			slot->to = relay_pos_data(buf, pos);
			result = relay_tx_commit(buf, &buf->control->head, &tx);
		}
		if (result == RELAY_RSEQ_DONE)
			return 0;
		if (claim)
			relay_claim_withdraw(claim);
		err = result == RELAY_RSEQ_ABORTED ? relay_rseq_misplaced(buf->cpu) : 0;
		if (err)
			return err;
	}
	return -EBADMSG;
}

/* Larger than any record can be? 0 if not. */
static int refuse_oversize(struct rchan_buf *buf, size_t length)
{
	if (length <= buf->largest)
		return 0;
	int err = relay_refuse_stopped(buf, length);
	return err ? err : relay_refuse_too_large(buf, length);
}

/* Take the writers' lock. `may_block` is false in the file server: return -EBUSY, and it retries. A producer that has waited in
 * vain is refused as if the buffer were full. */
static int lock(struct rchan_buf *buf, size_t length, bool will_retry, sigset_t *before)
{
	int err = relay_writers_lock(buf, before);
	return err == -EBUSY && buf->may_block ? refuse_full(buf, length, will_retry) : err;
}

static int reserve_alone(struct rchan_buf *buf, size_t length, struct relay_slot *slot)
{
	sigset_t before;
	if (slot->locked || buf->scheme != RELAY_LOCKING)
		return reserve(buf, length, slot);
	int err = lock(buf, length, slot->will_retry, &before);
	if (err)
		return err;
	err = reserve(buf, length, slot);
	relay_writers_unlock(buf, &before);
	return err;
}

int relay_reserve_visible(struct rchan_buf *buf, size_t length, struct relay_slot *slot)
{
	int err = refuse_oversize(buf, length);
	return err ? err : reserve_alone(buf, length, slot);
}

int relay_reserve_claimed(struct rchan_buf *buf, size_t length, struct relay_slot *slot)
{
	int err = refuse_oversize(buf, length);
	if (err)
		return err;
	slot->claim = relay_claim_take(buf);
	if (!slot->claim) {
		relay_switch_from_holes(buf, slot->locked);
		return refuse_full(buf, length, slot->will_retry);
	}
	err = reserve_alone(buf, length, slot);
	if (err)
		relay_claim_release(buf, slot->claim);
	return err;
}

/* Reserve one record and copy it (in scheme rseq, on the buffer's CPU). The caller says slot->locked, and ends the claim. */
static inline int copy_claimed(struct rchan_buf *buf, const void *data, size_t length, struct relay_record_time *time,
                               bool will_retry, struct relay_slot *slot)
{
	*slot = (struct relay_slot){.locked = slot->locked,
	                            .stamped = time != NULL,
	                            .is_short = time && time->is_short,
	                            .will_retry = will_retry};
	int err = relay_reserve_claimed(buf, length, slot);
	if (err)
		return err;
	if (!time) {
		memcpy(slot->to, data, length);
		return 0;
	}
	time->clock = slot->clock;
	uint64_t stamp = relay_record_stamp(time);
	memcpy(slot->to, &stamp, sizeof(stamp));
	memcpy((char *)slot->to + sizeof(stamp), time->rest, length - sizeof(stamp));
	return 0;
}

static int write_claimed(struct rchan_buf *buf, const void *data, size_t length, struct relay_record_time *time,
                         bool will_retry)
{
	struct relay_slot slot = {.locked = false};
	int err = copy_claimed(buf, data, length, time, will_retry, &slot);
	if (err)
		return err;
	relay_commit_claim(buf, slot.claim);
	return 0;
}

/* The same under the lock. Not inlined: its frame is much larger than what lockless writers need. */
static __attribute__((noinline)) int write_alone(struct rchan_buf *buf, const void *data, size_t length,
                                                 struct relay_record_time *time, bool will_retry)
{
	struct relay_slot slot = {.locked = true};
	sigset_t before;
	int err = refuse_oversize(buf, length);
	if (err)
		return err;
	err = lock(buf, length, will_retry, &before);
	if (err)
		return err;
	err = copy_claimed(buf, data, length, time, will_retry, &slot);
	if (!err)
		relay_claim_release(buf, slot.claim);
	relay_writers_unlock(buf, &before);
	/* Not before: a reader that is woken may take this CPU at once, and other writers would wait for the lock meanwhile. */
	if (!err)
		relay_wake_record(buf);
	return err;
}

int relay_write_shared(struct rchan_buf *buf, const void *data, size_t length, struct relay_record_time *time,
                       bool will_retry)
{
	if (length == 0)
		return 0;
	if (length <= buf->largest && relay_is_full(buf, __atomic_load_n(&buf->control->head.first, __ATOMIC_RELAXED)))
		return refuse_full(buf, length, will_retry);
	if (buf->scheme != RELAY_LOCKING)
		return write_claimed(buf, data, length, time, will_retry);
	return write_alone(buf, data, length, time, will_retry);
}

static bool names_claim(const struct relay_tx *seen)
{
	return seen->expect_second >> RELAY_OWNER_SHIFT != 0;
}

/* Let a fully helped claim's name go from head, so that plain writes may follow. */
static enum relay_rseq_result clear_owner(struct rchan_buf *buf, struct relay_tx *seen)
{
	seen->new_first = seen->expect_first & RELAY_POSITION_MASK;
	seen->new_second = seen->expect_second & RELAY_RECORDS_MASK;
	return relay_tx_commit(buf, &buf->control->head, seen);
}

static enum relay_rseq_result put_record(struct rchan_buf *buf, struct relay_tx *seen, const void *data, size_t length,
                                         const struct relay_record_time *time)
{
	uint64_t pos = seen->expect_first, next = (pos + length) ^ RELAY_LATCH_INDEX;
	void *to = relay_pos_data(buf, pos);
	if (names_claim(seen))
		return clear_owner(buf, seen) == RELAY_RSEQ_ABORTED ? RELAY_RSEQ_ABORTED : RELAY_RSEQ_MOVED;
	RELAY_PUBLISHES(&buf->control->head.first);
	if (!time)
		return relay_rseq_record(buf->control, pos, next, to, data, length, buf->cpu);
	return relay_rseq_stamped_record(buf->control, pos, next, to, relay_record_stamp(time), time->rest,
	                                 length - RELAY_TRACE_HEAD_BYTES, buf->cpu);
}

int relay_write_rseq_slow(struct rchan_buf *buf, const void *data, size_t length, struct relay_record_time *time,
                          bool will_retry)
{
	if (length == 0)
		return 0;
	int moves = 0;
	for (int aborts = 0; aborts <= MAX_ABORTS;) {
		int err = relay_refuse_stopped(buf, length);
		if (err)
			return err;
		if (length > buf->largest)
			return relay_refuse_too_large(buf, length);
		struct relay_tx seen = relay_tx_load(buf, &buf->control->head);
		enum relay_try tried = relay_buf_try_reserve(buf, &seen, length);
		enum relay_rseq_result result = RELAY_RSEQ_MOVED;
		if (tried >= RELAY_TRY_FULL)
			return refuse_tried(buf, tried, length, will_retry);
		if (moves++ > MAX_MOVES)
			return -EBADMSG;
		/* Between the look and the section, which checks that nobody came between them. */
		if (tried == RELAY_TRY_HERE && time && !take_time(buf, seen.expect_first, time))
			return RELAY_TIME_IS_LONG;
		if (tried == RELAY_TRY_HERE)
			result = put_record(buf, &seen, data, length, time);
		if (result == RELAY_RSEQ_DONE) {
			relay_wake_record(buf);
			return 0;
		}
		if (result == RELAY_RSEQ_ABORTED || tried == RELAY_TRY_ABORTED) {
			err = relay_rseq_misplaced(buf->cpu);
			if (err)
				return err;
			aborts++;
		}
	}
	return write_claimed(buf, data, length, time, will_retry);
}
