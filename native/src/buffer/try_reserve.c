/* SPDX-License-Identifier: MIT */
/*
 * Finding room for a record is the same in all schemes:
 *
 *     head ──> stopped?  ──> too large? ──> at offset 0: has the reader left this sub-buffer?   (no-overwrite)
 *                                                        does the client let it begin?          (callback)
 *                                           does not fit: switch, load head again
 *
 * A switch changes head and is published before any record is stored in the new sub-buffer, so that a reader in
 * overwrite mode can always tell that it was lapped.
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
	/* A longer record counts as RELAY_SUBBUF_SIZE_MAX bytes, so that the sum of bytes does not overflow. */
	uint64_t counted = length < RELAY_SUBBUF_SIZE_MAX ? length : RELAY_SUBBUF_SIZE_MAX;
	return refuse_in_buf(buf, &buf->control->lost_too_large, counted, -EMSGSIZE);
}

/* How often channel/move.c has begun and ended to replace the buffer's memory. */
static uint32_t moves_of(const struct rchan_buf *buf)
{
	/* Pairs with the releases in channel/move.c, which makes the number odd before it sets RELAY_RESETTING, and even
	 * after it has cleared that flag. */
	return __atomic_load_n(&buf->moves, __ATOMIC_ACQUIRE);
}

int relay_writers_lock(struct rchan_buf *buf, sigset_t *before)
{
	uint32_t moves;
	int result;
	if (buf->scheme != RELAY_LOCKING)
		return 0;
	/* A writer that waits until the memory is replaced has the lock, and others wait for it as long. */
	do {
		moves = moves_of(buf);
		result = relay_lock_take(&buf->control->write_lock, relay_blocking(buf), &buf->wait_lost, before);
	} while (result == -EBUSY && relay_blocking(buf) == RELAY_MAY_BLOCK && (moves % 2 || moves_of(buf) != moves));
	/* 1, the lock was a dead thread's, needs no action: the dead thread's claim says what has to be completed. */
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
	uint32_t flags, moves;
	for (;;) {
		moves = moves_of(buf);
		flags = __atomic_load_n(&buf->control->flags, __ATOMIC_ACQUIRE);
		if (!(flags & RELAY_STOPPED) || (moves % 2 == 0 && moves_of(buf) == moves))
			break;
		clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){.tv_nsec = MOVING_PAUSE_NS}, NULL);
	}
	if (flags & RELAY_CLOSED)
		return -EPIPE;
	if (flags & RELAY_STOPPED)
		return refuse_in_buf(buf, &buf->control->lost_disabled, length, -ECANCELED);
	return 0;
}

int relay_refuse_stopped(struct rchan_buf *buf, uint64_t length)
{
	/* Pairs with relay_buf_stop() in buffer/control.c, which sets the flag before it changes head; the
	 * caller has loaded head before. */
	uint32_t flags = __atomic_load_n(&buf->control->flags, __ATOMIC_ACQUIRE);
	return __builtin_expect(flags & (RELAY_CLOSED | RELAY_STOPPED), 0) ? wait_or_refuse(buf, length) : 0;
}

/* True if the sub-buffer that starts at pos may be overwritten. */
static bool has_room(const struct rchan_buf *buf, uint64_t pos)
{
	return buf->mode != RELAY_NO_OVERWRITE || relay_has_left(buf, pos);
}

static void note_switch(struct rchan_buf *buf)
{
	/* Relaxed: only for statistics. */
	__atomic_store_n(&buf->control->switch_time_ns, relay_clock_ns(CLOCK_REALTIME_COARSE), __ATOMIC_RELAXED);
	/* If sub-buffers begin by `begin`, the previous one is finished only after that call, and
	 * relay_subbuf_start() wakes readers. */
	if (!buf->begins)
		relay_wake_switch(buf);
}

/*
 * Switch from the sub-buffer of `seen`, head as relay_tx_load() has loaded it, to the next one. Returns DONE, MOVED or
 * ABORTED as relay_tx_commit(); STOPPED: not possible, because a living writer has a claim in the memory of the next
 * one, no claim is free, or positions are used up. The caller has helped the claim that `seen` names.
 */
static enum relay_rseq_result switch_subbuf(struct rchan_buf *buf, const struct relay_tx *seen)
{
	uint64_t pos = seen->expect_first & RELAY_POSITION_MASK, next = relay_pos_next(buf, pos);
	uint64_t records = seen->expect_second & RELAY_RECORDS_MASK;
	struct relay_subbuf *left = relay_pos_entry(buf, pos);
	struct relay_subbuf *entered = relay_pos_entry(buf, next);
	/* Relaxed: the entry does not change while head is in this sub-buffer, which relay_tx_commit() checks. */
	uint64_t bytes = __atomic_load_n(&left->start_bytes, __ATOMIC_RELAXED) + relay_pos_offset(buf, pos);
	/* If sub-buffers begin by `begin`, the switch overwrites nothing. */
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

/* Let the sub-buffer at pos begin. */
static enum relay_try try_beginning(struct rchan_buf *buf, uint64_t pos, uint64_t length)
{
	uint64_t header;
	switch (relay_subbuf_start(buf, &header)) {
	case RELAY_BEGUN:
		/* The record may fit into the second sub-buffer, which has fewer reserved bytes than the first. */
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
		/* may_block is false in the file server: return -EBUSY, and let it try again. */
		if (!buf->may_block)
			return -EBUSY;
		/* fall through */
	case RELAY_TRY_FULL:
		return relay_refuse_full(buf, length);
	case RELAY_TRY_TOO_LARGE:
		return relay_refuse_too_large(buf, length);
	case RELAY_TRY_IN_CALLBACK:
		/* In a tracepoint, this is a signal handler that has interrupted a tracepoint
		 * of the same quiet thread. */
		return buf->never_waits ? relay_refuse_full(buf, length) : -EDEADLK;
	default:
		return -EBADMSG;
	}
}

/* Let the next sub-buffer begin at once after a flush, as in the kernel. It is no error if it may not begin, or
 * another thread is about to begin it. */
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
 * switch_subbuf() notes in `asked` that the sub-buffer which it enters has to wait for room. As in the kernel, the
 * first flush after there is room begins this sub-buffer and finishes none, because finishing it would make a
 * buffer of few sub-buffers full again. The note is stored without a lock. The only error that can arise is that a
 * flush finishes an empty sub-buffer, if the writer dies before the store, or stores so late that it replaces the note
 * about a later sub-buffer.
 *
 * Returns true if this call has begun the sub-buffer.
 */
static bool begin_awaited(struct rchan_buf *buf, uint64_t pos)
{
	uint64_t waits = (relay_pos_number(buf, pos) + 1) << RELAY_ASKED_SHIFT | RELAY_ASKED_ENDED;
	/* Relaxed: it only decides which of several flushes begins the sub-buffer. */
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
		/* If the buffer is full, head is at the start of a sub-buffer that is not free, and
		 * there is nothing to finish. */
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
 * A hole keeps its claim until a reader passes it or a lap overwrites it. A reader of packets passes it only after
 * its sub-buffer is finished. Writers without claims would never finish that; so each reservation that is refused
 * finishes one sub-buffer. Except in mode overwrite, it finishes only the sub-buffer with the holes, and not the
 * next one, which has none.
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
