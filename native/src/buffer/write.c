/* SPDX-License-Identifier: MIT */
/*
 * Writing records, except for the fast path in buffer/write.h. buffer/try_reserve.c finds room; then head changes:
 *
 *     rseq      by a restartable section on the buffer's CPU
 *     lockless  by a 16-byte compare-and-swap
 *     locking   as lockless, with a robust lock around the whole write. If a writer dies, the next one takes the lock,
 *               and the claim says what becomes of the record, as in lockless
 */
#define _GNU_SOURCE
#include "buffer/write.h"

#include "base/clock.h"
#include "buffer/try_reserve.h"

#include <string.h>

enum {
	/* After more aborts, by signals or a debugger, the record is written with a claim instead. */
	MAX_ABORTS = 8,
	/* No thread changes head without aborting the section, so more changes mean that the memory is damaged. */
	MAX_MOVES = 10000,
	/* How often to try to write records together, while other threads change head. */
	TOGETHER_TRIES = 8
};

/* True if `clock` and the start of pos's sub-buffer have the same upper 16 bits, so that a short head has the time. */
static bool has_same_epoch(struct rchan_buf *buf, uint64_t pos, uint64_t clock)
{
	uint64_t epoch = clock >> RELAY_TRACE_TIME_BITS;
	/* Relaxed: a sub-buffer that begins later has a later start_clock. */
	uint64_t start = __atomic_load_n(&relay_pos_entry(buf, pos)->start_clock, __ATOMIC_RELAXED);
	if (start >> RELAY_TRACE_TIME_BITS != epoch)
		return false;
	__atomic_store_n(&buf->epoch, epoch, __ATOMIC_RELAXED);
	return true;
}

/* Read the clock for a record at `pos`, after pos was loaded and before the section checks that head is still there. A
 * thread that writes a later record has loaded a later head, and so reads a later time. Returns false if the record
 * needs a long head. Not inlined, because otherwise relay_write_rseq_slow() would run out of registers. */
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

/* Refuse a record because of the result `tried`. As relay_buf_refuse(), but with will_retry -ENOSPC is not counted. */
static int refuse_tried(struct rchan_buf *buf, enum relay_try tried, size_t length, bool will_retry)
{
	bool is_full = tried == RELAY_TRY_FULL || (tried == RELAY_TRY_BUSY && buf->may_block);
	return is_full && will_retry ? -ENOSPC : relay_buf_refuse(buf, tried, length);
}

/* Reserve `length` bytes for slot->claim; if that is NULL, readers see them at once. Returns 0, RELAY_TIME_IS_LONG, or
 * as relay_write(). */
static int reserve(struct rchan_buf *buf, size_t length, struct relay_slot *slot)
{
	struct relay_claim *claim = slot->claim;
	for (int tries = 0; tries < RELAY_CHANGE_TRIES; tries++) {
		struct relay_tx tx = relay_tx_load(buf, &buf->control->head);
		/* Checked after head was loaded, because relay_buf_stop() sets the flag before it changes head. */
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
			/* Read before head changes: the writer of a later record reads the clock after that change. */
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
			relay_prefetch_ahead(slot->to);
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

/* Refuse a record that no sub-buffer has room for. Returns 0 if it is not so long. */
static int refuse_oversize(struct rchan_buf *buf, size_t length)
{
	if (length <= buf->largest)
		return 0;
	int err = relay_refuse_stopped(buf, length);
	return err ? err : relay_refuse_too_large(buf, length);
}

/* Take the lock of scheme locking. If it cannot be taken, the record is refused as if the buffer were full, except in
 * the file server, where may_block is false: it gets -EBUSY and retries. */
static int lock_writers(struct rchan_buf *buf, size_t length, bool will_retry, sigset_t *before)
{
	int err = relay_writers_lock(buf, before);
	return err == -EBUSY && buf->may_block ? refuse_full(buf, length, will_retry) : err;
}

static int reserve_in_turn(struct rchan_buf *buf, size_t length, struct relay_slot *slot)
{
	sigset_t before;
	if (slot->locked || buf->scheme != RELAY_LOCKING)
		return reserve(buf, length, slot);
	int err = lock_writers(buf, length, slot->will_retry, &before);
	if (err)
		return err;
	err = reserve(buf, length, slot);
	relay_writers_unlock(buf, &before);
	return err;
}

int relay_reserve_visible(struct rchan_buf *buf, size_t length, struct relay_slot *slot)
{
	int err = refuse_oversize(buf, length);
	return err ? err : reserve_in_turn(buf, length, slot);
}

/* As relay_reserve_claimed(), without the fast path. */
static int reserve_claimed(struct rchan_buf *buf, size_t length, struct relay_slot *slot)
{
	int err = refuse_oversize(buf, length);
	if (err)
		return err;
	slot->claim = relay_claim_take(buf);
	if (!slot->claim) {
		relay_switch_from_holes(buf, slot->locked);
		return refuse_full(buf, length, slot->will_retry);
	}
	err = reserve_in_turn(buf, length, slot);
	if (err)
		relay_claim_release(buf, slot->claim);
	return err;
}

/*
 * The fast path of scheme lockless: reserve a record that fits behind another one, with the claim that this thread
 * keeps. NULL: nothing was done. A locked instruction waits for all stores before it, and the loads behind it wait for
 * it, so that records do not overlap in the CPU: each call, and each store besides those of the claim, makes this slower.
 */
static inline __attribute__((always_inline)) struct relay_claim *reserve_behind(struct rchan_buf *buf, size_t length,
                                                                                void **to)
{
	struct relay_control *control = buf->control;
	uint64_t kept = relay_inline_kept(&buf->claim_table.fast);
	/* Acquire, both: as in relay_tx_load(). */
	uint64_t first = __atomic_load_n(&control->head.first, __ATOMIC_ACQUIRE);
	uint64_t second = __atomic_load_n(&control->head.second[0], __ATOMIC_ACQUIRE);
	/* Acquire, and after head: as in relay_refuse_stopped(). */
	uint32_t flags = __atomic_load_n(&control->flags, __ATOMIC_ACQUIRE);
	uint64_t pos = first & RELAY_POSITION_MASK, records = second & RELAY_RECORDS_MASK;
	unsigned char *at;
	if (__builtin_expect(kept >= RELAY_N_CLAIMS || flags & RELAY_STOPPED || length - 1 >= buf->largest ||
	                         !relay_inline_place(&buf->fast, pos, length, &at),
	                     0))
		return NULL;
	struct relay_claim *claim = &buf->claims[kept];
	relay_claims_help(buf, pos, second);
	if (__builtin_expect(!relay_inline_take(claim), 0))
		return NULL;
	relay_claim_state(claim, pos, length, records, 0);
	relay_prefetch_ahead(at);
	*to = at;
	RELAY_PUBLISHES(&control->head.first);
	if (__builtin_expect(relay_latch_cmpxchg(&control->head, first, second, pos + length,
	                                         (records + 1) | (kept + 1) << RELAY_OWNER_SHIFT),
	                     1))
		return claim;
	relay_inline_free(claim);
	return NULL;
}

int relay_reserve_claimed(struct rchan_buf *buf, size_t length, struct relay_slot *slot)
{
	if (buf->scheme == RELAY_LOCKLESS && !slot->stamped &&
	    __builtin_expect((slot->claim = reserve_behind(buf, length, &slot->to)) != NULL, 1))
		return 0;
	return reserve_claimed(buf, length, slot);
}

/* Reserve a record with a claim, and copy it. The caller has set slot->locked, and releases the claim. */
static inline int copy_claimed(struct rchan_buf *buf, const void *data, size_t length, struct relay_record_time *time,
                               bool will_retry, struct relay_slot *slot)
{
	*slot = (struct relay_slot){.locked = slot->locked,
	                            .stamped = time != NULL,
	                            .is_short = time && time->is_short,
	                            .will_retry = will_retry};
	int err = reserve_claimed(buf, length, slot);
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

/* Write a record in scheme locking. Not inlined, because writers of scheme lockless need a much smaller stack frame. */
static __attribute__((noinline)) int write_locking(struct rchan_buf *buf, const void *data, size_t length,
                                                   struct relay_record_time *time, bool will_retry)
{
	struct relay_slot slot = {.locked = true};
	sigset_t before;
	int err = refuse_oversize(buf, length);
	if (err)
		return err;
	err = lock_writers(buf, length, will_retry, &before);
	if (err)
		return err;
	err = copy_claimed(buf, data, length, time, will_retry, &slot);
	if (!err)
		relay_claim_release(buf, slot.claim);
	relay_writers_unlock(buf, &before);
	/* Readers are woken after the lock is released: a reader that is woken may run on this CPU at once, and other
	 * writers would wait for the lock meanwhile. */
	if (!err)
		relay_wake_record(buf);
	return err;
}

/* As relay_write_shared(), without the fast path. Not inlined, as write_locking(). */
static __attribute__((noinline)) int write_slowly(struct rchan_buf *buf, const void *data, size_t length,
                                                  struct relay_record_time *time, bool will_retry)
{
	if (length == 0)
		return 0;
	if (length <= buf->largest && relay_is_full(buf, __atomic_load_n(&buf->control->head.first, __ATOMIC_RELAXED)))
		return refuse_full(buf, length, will_retry);
	if (buf->scheme != RELAY_LOCKING)
		return write_claimed(buf, data, length, time, will_retry);
	return write_locking(buf, data, length, time, will_retry);
}

int relay_write_shared(struct rchan_buf *buf, const void *data, size_t length, struct relay_record_time *time,
                       bool will_retry)
{
	void *to;
	struct relay_claim *claim = buf->scheme == RELAY_LOCKLESS && !time ? reserve_behind(buf, length, &to) : NULL;
	if (__builtin_expect(!claim, 0))
		return write_slowly(buf, data, length, time, will_retry);
	uint64_t pos = relay_claim_position(claim);
	memcpy(to, data, length);
	relay_inline_free(claim);
	relay_wake_commit(buf, pos);
	return 0;
}

/* The bytes that fit behind the last record, at `pos`; 0: as relay_together_room(). */
static uint64_t room_behind(const struct rchan_buf *buf, uint64_t pos)
{
	uint64_t offset = relay_pos_offset(buf, pos);
	/* Pairs with relay_buf_stop() in buffer/control.c, as in relay_refuse_stopped(): the caller has loaded head before. */
	bool is_stopped = __atomic_load_n(&buf->control->flags, __ATOMIC_ACQUIRE) & (RELAY_CLOSED | RELAY_STOPPED);
	return is_stopped || !offset || offset > buf->subbuf_end || !relay_pos_valid(buf, pos)
	           ? 0
	           : buf->subbuf_end - offset;
}

size_t relay_together_room(const struct rchan_buf *buf)
{
	if (buf->scheme == RELAY_LOCKING || buf->is_timed)
		return 0;
	uint64_t room =
	    room_behind(buf, __atomic_load_n(&buf->control->head.first, __ATOMIC_ACQUIRE) & RELAY_POSITION_MASK);
	return room < RELAY_TOGETHER_MAX ? room : RELAY_TOGETHER_MAX;
}

static bool write_together_rseq(struct rchan_buf *buf, const void *data, size_t length, uint64_t n)
{
	/* Relaxed: as in relay_write_rseq_here(). */
	uint64_t head = __atomic_load_n(&buf->control->head.first, __ATOMIC_RELAXED), pos = head & RELAY_POSITION_MASK;
	if (room_behind(buf, pos) < length)
		return false;
	RELAY_PUBLISHES(&buf->control->head.first);
	if (relay_rseq_records(buf->control, head, (head + length) ^ RELAY_LATCH_INDEX, relay_pos_data(buf, pos), data,
	                       length, n, buf->cpu) != RELAY_RSEQ_DONE)
		return false;
	relay_wake_record(buf);
	return true;
}

bool relay_write_together(struct rchan_buf *buf, const void *data, size_t length, uint64_t n)
{
	if (buf->scheme == RELAY_RSEQ)
		return write_together_rseq(buf, data, length, n);
	struct relay_claim *claim = relay_claim_take(buf);
	if (!claim)
		return false;
	for (int tries = 0; tries < TOGETHER_TRIES; tries++) {
		struct relay_tx tx = relay_tx_load(buf, &buf->control->head);
		uint64_t pos = tx.expect_first & RELAY_POSITION_MASK, records = tx.expect_second & RELAY_RECORDS_MASK;
		if (room_behind(buf, pos) < length)
			break;
		relay_claims_help(buf, pos, tx.expect_second);
		relay_claim_state(claim, pos, length, records, (n - 1) << RELAY_CLAIM_MORE_SHIFT);
		tx.new_first = pos + length;
		tx.new_second = (records + n) | relay_claim_owner_bits(buf, claim);
		if (relay_tx_commit(buf, &buf->control->head, &tx) == RELAY_RSEQ_DONE) {
			memcpy(relay_pos_data(buf, pos), data, length);
			relay_commit_claim(buf, claim);
			return true;
		}
		relay_claim_withdraw(claim);
	}
	relay_claim_release(buf, claim);
	return false;
}

static bool names_claim(const struct relay_tx *seen)
{
	return seen->expect_second >> RELAY_OWNER_SHIFT != 0;
}

/* Remove the name of a claim, which relay_claims_help() has completed, from head. relay_rseq_record() requires that. */
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
		/* Read after head was loaded; the section then fails if head has changed. */
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
