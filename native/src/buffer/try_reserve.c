/* SPDX-License-Identifier: MIT */
/*
 * Finding room for a record is the same in all schemes:
 *
 *     head ──> stopped?  ──> too large? ──> at offset 0: has the reader left this sub-buffer?   (no-overwrite)
 *                                                        does the client let it begin?          (callback)
 *                                           does not fit: switch, look again
 *
 * A switch is a change of its own, published before anything is stored in the new sub-buffer: so a reader that was
 * lapped can always tell.
 */
#define _GNU_SOURCE
#include "buffer/try_reserve.h"

#include "base/clock.h"
#include "base/refuse.h"
#include "base/robust_lock.h"
#include "buffer/claims.h"
#include "buffer/head.h"
#include "buffer/subbuf_start.h"
#include "buffer/wake.h"

#include <time.h>

enum { MOVING_PAUSE_NS = 100000 };

enum relay_rseq_result relay_tx_transact(struct rchan_buf *buf, struct relay_latch *latch, struct relay_tx *tx)
{
	static uint64_t nowhere;
	for (int i = 0; i < 3; i++)
		if (!tx->store[i].at)
			tx->store[i].at = &nowhere;
	tx->new_first |= ~tx->expect_first & RELAY_LATCH_INDEX;
	enum relay_rseq_result result = relay_rseq_transact(latch, &buf->control->flags, tx, buf->cpu);
	if (__builtin_expect(result != RELAY_RSEQ_ABORTED, 1))
		return result;
	return relay_persist_transact(latch, &buf->control->flags, tx, buf->cpu);
}

static int refuse_in_buf(const struct rchan_buf *buf, struct relay_latch *lost, uint64_t length, int err)
{
	return relay_refuse(lost, length, buf->scheme, buf->cpu, err);
}

int relay_refuse_full(struct rchan_buf *buf, size_t length)
{
	return refuse_in_buf(buf, &buf->control->lost_full, length, -ENOSPC);
}

int relay_refuse_too_large(struct rchan_buf *buf, size_t length)
{
	/* Whatever is asked for counts as no more than the largest sub-buffer there can be, so that the sum of bytes stays
	 * a number. */
	uint64_t counted = length < RELAY_SUBBUF_SIZE_MAX ? length : RELAY_SUBBUF_SIZE_MAX;
	return refuse_in_buf(buf, &buf->control->lost_too_large, counted, -EMSGSIZE);
}

int relay_writers_lock(struct rchan_buf *buf, sigset_t *before)
{
	if (buf->scheme != RELAY_LOCKING)
		return 0;
	int result = relay_lock_take(&buf->control->write_lock, relay_blocking(buf), &buf->wait_lost, before);
	/* 1: the holder died. Its claim tells what has to be done. */
	return result < 0 ? result : 0;
}

void relay_writers_unlock(struct rchan_buf *buf, const sigset_t *before)
{
	if (buf->scheme == RELAY_LOCKING)
		relay_lock_release(&buf->control->write_lock, before);
}

/* Wait while the buffer's memory is being replaced; refuse the record if the buffer is stopped. */
static __attribute__((noinline)) int wait_or_refuse(struct rchan_buf *buf, uint64_t length)
{
	uint32_t flags = __atomic_load_n(&buf->control->flags, __ATOMIC_ACQUIRE);
	/* Pairs with the release in channel/move.c, which stores `moving` before the flag and clears it after the flag. */
	while (__builtin_expect(flags & RELAY_STOPPED && __atomic_load_n(&buf->moving, __ATOMIC_ACQUIRE), 0)) {
		clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){.tv_nsec = MOVING_PAUSE_NS}, NULL);
		flags = __atomic_load_n(&buf->control->flags, __ATOMIC_ACQUIRE);
	}
	if (flags & RELAY_CLOSED)
		return -EPIPE;
	if (flags & RELAY_STOPPED)
		return refuse_in_buf(buf, &buf->control->lost_disabled, length, -ECANCELED);
	return 0;
}

int relay_refuse_stopped(struct rchan_buf *buf, uint64_t length)
{
	uint32_t flags = __atomic_load_n(&buf->control->flags, __ATOMIC_ACQUIRE);
	return __builtin_expect(flags & (RELAY_CLOSED | RELAY_STOPPED), 0) ? wait_or_refuse(buf, length) : 0;
}

/* Is the sub-buffer that pos begins free? */
static bool has_room(const struct rchan_buf *buf, uint64_t pos)
{
	return buf->mode != RELAY_NO_OVERWRITE || relay_has_left(buf, pos);
}

static void note_switch(struct rchan_buf *buf)
{
	/* Relaxed: for people. */
	__atomic_store_n(&buf->control->switch_time_ns, relay_clock_ns(CLOCK_REALTIME_COARSE), __ATOMIC_RELAXED);
	/* With a client, what is finished is finished when the client has seen it. */
	if (!buf->begins)
		relay_wake_switch(buf);
}

/*
 * Leave the sub-buffer that `seen` is in. DONE, MOVED or ABORTED as relay_tx_commit(); STOPPED: not possible (a living
 * writer's claim lies in the next one's memory, no claim is to be had, or positions are used up).
 * The caller has helped the claim that `seen` names.
 */
static enum relay_rseq_result switch_subbuf(struct rchan_buf *buf, const struct relay_tx *seen)
{
	uint64_t pos = seen->expect_first & RELAY_POSITION_MASK, next = relay_pos_next(buf, pos);
	uint64_t records = seen->expect_second & RELAY_RECORDS_MASK;
	struct relay_subbuf *left = relay_pos_ledger(buf, pos);
	struct relay_subbuf *entered = relay_pos_ledger(buf, next);
	/* Relaxed: constant while head is in this sub-buffer, which the change checks. */
	uint64_t bytes = __atomic_load_n(&left->start_bytes, __ATOMIC_RELAXED) + relay_pos_offset(buf, pos);
	/* What has to begin overwrites nothing before it does. */
	bool overwrites = buf->mode == RELAY_OVERWRITE && !buf->begins;
	if (next <= pos || (overwrites && relay_claims_hold(buf, next)))
		return RELAY_RSEQ_STOPPED;

	struct relay_tx tx = {
	    .expect_first = seen->expect_first,
	    .expect_second = seen->expect_second,
	    .new_first = next,
	    .new_second = records,
	    .store = {{&left->end, pos}, {&entered->start_records, records}, {&entered->start_bytes, bytes}}};
	struct relay_claim *claim = NULL;
	if (buf->scheme != RELAY_RSEQ) {
		claim = relay_claim_take_for_switch(buf);
		if (!claim)
			return RELAY_RSEQ_STOPPED;
		relay_claim_state(claim, pos, RELAY_CLAIM_SWITCH, records, bytes);
		tx.new_second |= relay_claim_owner_bits(buf, claim);
	}
	enum relay_rseq_result result = relay_tx_commit(buf, &buf->control->head, &tx);
	if (claim) {
		if (result == RELAY_RSEQ_DONE)
			relay_claims_help(buf, next, tx.new_second);
		relay_claim_release(buf, claim);
	}
	if (result == RELAY_RSEQ_DONE) {
		if (overwrites)
			relay_claims_drop_holes(buf, next);
		if (!buf->begins && !has_room(buf, next))
			relay_say(buf, relay_pos_number(buf, next), RELAY_ASKED_ENDED);
		note_switch(buf);
	}
	return result;
}

/* Let it begin. */
static enum relay_try try_beginning(struct rchan_buf *buf, uint64_t pos, uint64_t length)
{
	uint64_t header;
	switch (relay_subbuf_start(buf, &header)) {
	case RELAY_BEGUN:
		/* In the second sub-buffer there is more room than in the first. */
		if (relay_pos_number(buf, pos) == 0)
			return RELAY_TRY_AGAIN;
		return header + length > buf->subbuf_end ? RELAY_TRY_TOO_LARGE : RELAY_TRY_AGAIN;
	case RELAY_NOT_YET:
		return RELAY_TRY_FULL;
	case RELAY_SUBBUF_START_BUSY:
		return RELAY_TRY_BUSY;
	case RELAY_IN_CALLBACK:
		return RELAY_TRY_IN_CALLBACK;
	default:
		return RELAY_TRY_DAMAGED;
	}
}

enum relay_try relay_buf_try_reserve(struct rchan_buf *buf, const struct relay_tx *seen, uint64_t length)
{
	uint64_t pos = seen->expect_first & RELAY_POSITION_MASK, offset = relay_pos_offset(buf, pos);
	if (!relay_pos_valid(buf, pos))
		return RELAY_TRY_DAMAGED;
	relay_claims_help(buf, pos, seen->expect_second);
	if (!relay_has_begun(buf, pos))
		return try_beginning(buf, pos, length);
	if (offset == 0)
		return has_room(buf, pos) ? RELAY_TRY_HERE : RELAY_TRY_FULL;
	if (offset + length <= buf->subbuf_end)
		return RELAY_TRY_HERE;
	switch (switch_subbuf(buf, seen)) {
	case RELAY_RSEQ_STOPPED:
		return RELAY_TRY_FULL;
	case RELAY_RSEQ_ABORTED:
		return RELAY_TRY_ABORTED;
	default:
		return RELAY_TRY_AGAIN;
	}
}

int relay_buf_refuse(struct rchan_buf *buf, enum relay_try tried, uint64_t length)
{
	switch (tried) {
	case RELAY_TRY_BUSY:
		/* Who only passes records on, as a file server does, comes again. */
		if (!buf->may_block)
			return -EBUSY;
		/* fall through */
	case RELAY_TRY_FULL:
		return relay_refuse_full(buf, length);
	case RELAY_TRY_TOO_LARGE:
		return relay_refuse_too_large(buf, length);
	case RELAY_TRY_IN_CALLBACK:
		/* A signal handler of a quiet thread has interrupted a tracepoint. */
		return buf->never_waits ? relay_refuse_full(buf, length) : -EDEADLK;
	default:
		return -EBADMSG;
	}
}

/* As in the kernel, at once; no is an answer, and so is that somebody else is at it. */
static int begin_after_flush(struct rchan_buf *buf)
{
	uint64_t header;
	switch (relay_subbuf_start(buf, &header)) {
	case RELAY_IN_CALLBACK:
		return -EDEADLK;
	case RELAY_SUBBUF_START_DAMAGED:
		return -EBADMSG;
	default:
		return 0;
	}
}

/*
 * switch_subbuf() notes in `asked` that the sub-buffer it enters has to wait for room. As in the kernel, a flush that comes
 * once there is room begins this sub-buffer, and finishes none: it would only make a buffer of few sub-buffers full again.
 * The note is stored without a lock, because all that hangs on it is whether a flush finishes an empty sub-buffer: one does
 * if the writer dies before the store, or stores so late that it replaces the note on a later sub-buffer.
 *
 * false: the sub-buffer has begun.
 */
static bool begin_awaited(struct rchan_buf *buf, uint64_t pos)
{
	uint64_t waits = (relay_pos_number(buf, pos) + 1) << RELAY_ASKED_SHIFT | RELAY_ASKED_ENDED;
	/* Relaxed: it only decides which of two flushes begins the sub-buffer. */
	return !buf->begins && relay_pos_offset(buf, pos) == 0 &&
	       __atomic_compare_exchange_n(&buf->control->asked, &waits, waits | RELAY_ASKED_YES, false,
	                                   __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

static int flush(struct rchan_buf *buf)
{
	for (int tries = 0, err; tries < RELAY_CHANGE_TRIES; tries++) {
		struct relay_tx seen = relay_tx_load(buf, &buf->control->head);
		uint64_t pos = seen.expect_first & RELAY_POSITION_MASK;
		if (!relay_pos_valid(buf, pos))
			return -EBADMSG;
		relay_claims_help(buf, pos, seen.expect_second);
		if (!relay_has_begun(buf, pos))
			return relay_is_unallocated(buf) ? relay_finish_unallocated(buf) : begin_after_flush(buf);
		/* A full buffer waits at the start of a sub-buffer that is not free: there is nothing to leave. */
		if (relay_pos_offset(buf, pos) == 0 && !has_room(buf, pos))
			return 0;
		if (begin_awaited(buf, pos))
			return 0;
		switch (switch_subbuf(buf, &seen)) {
		case RELAY_RSEQ_DONE:
			return buf->begins ? begin_after_flush(buf) : 0;
		case RELAY_RSEQ_STOPPED:
			return -EBUSY;
		case RELAY_RSEQ_ABORTED:
			if ((err = relay_rseq_misplaced(buf->cpu)))
				return err;
			break;
		case RELAY_RSEQ_MOVED:
			break;
		}
	}
	return -EBADMSG;
}

int relay_switch(struct rchan_buf *buf)
{
	sigset_t before;
	int err = relay_writers_lock(buf, &before);
	if (err)
		return err;
	err = flush(buf);
	relay_writers_unlock(buf, &before);
	return err;
}

/*
 * A hole keeps its claim until a reader passes it, and who reads packets does not come by before its sub-buffer is finished;
 * or until it is overwritten, which is a lap away. Writers without claims would never get there, so each that is refused
 * leaves one sub-buffer. Where a reader is awaited, that is the one with the holes; the next one has none.
 */
void relay_switch_from_holes(struct rchan_buf *buf, bool locked)
{
	uint64_t head, second, from = 0;
	if (__atomic_load_n(&buf->control->flags, __ATOMIC_ACQUIRE) & RELAY_STOPPED || relay_head(buf, &head, &second))
		return;
	if (buf->mode != RELAY_OVERWRITE)
		from = relay_pos_start(buf, relay_pos_number(buf, head));
	if (relay_claims_n_holes(buf, from) >= RELAY_N_RESERVATIONS / 2)
		(void)(locked ? flush(buf) : relay_switch(buf));
}
