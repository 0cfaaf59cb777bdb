/* SPDX-License-Identifier: MIT */
/*
 * Writing one buffer, all that is not the fast path.
 *
 * Both schemes walk the same way from a record to its place:
 *
 *     head ──> stopped?  ──> too large? ──> at offset 0: has the reader left this sub-buffer?   (no-overwrite)
 *                                                        does subbuf_start let it begin?        (callback)
 *                                           does not fit: switch, look again
 *
 * and differ in how head changes: in scheme rseq by a restartable section on the buffer's CPU, in scheme
 * lockless by a 16-byte compare-and-swap. A switch is a change of its own, published before anything is
 * stored in the new sub-buffer: so a reader that was lapped can always tell.
 */
#define _GNU_SOURCE
#include "write.h"

#include "begin.h"
#include "claims.h"

#include <string.h>
#include <time.h>

enum {
	/* A section restarted this often is too long for the signals (or the debugger) around it. */
	MAX_ABORTS = 8,
	/* Nobody else changes head on this CPU without an abort of ours: so often only nonsense makes it. */
	MAX_MOVES = 10000
};

static enum relay_rseq_result tally(struct rchan_buf *buf, struct relay_pair *lost, uint64_t length)
{
	if (buf->scheme == RELAY_SCHEME_RSEQ)
		return relay_rseq_tally(lost, length, buf->cpu);
	struct relay_tx tx = relay_look(buf, lost);
	tx.new_first = tx.expect_first + 1;
	tx.new_second = tx.expect_second + length;
	return relay_change(buf, lost, &tx);
}

/* Count a refused record. Returns `err`, or what relay_misplaced() says: then it was not counted. */
static int refuse(struct rchan_buf *buf, struct relay_pair *lost, uint64_t length, int err)
{
	for (;;) {
		enum relay_rseq_result result = tally(buf, lost, length);
		if (__builtin_expect(result == RELAY_RSEQ_DONE, 1))
			return err;
		int gone = result == RELAY_RSEQ_ABORTED ? relay_misplaced(buf) : 0;
		if (gone)
			return gone;
	}
}

int relay_refuse_full(struct rchan_buf *buf, size_t length)
{
	return refuse(buf, &buf->control->lost_full, length, -ENOSPC);
}

int relay_refuse_too_large(struct rchan_buf *buf, size_t length)
{
	return refuse(buf, &buf->control->lost_too_large, length, -EMSGSIZE);
}

/* Stopped: why? 0: it is not, any more. */
static int refuse_stopped(struct rchan_buf *buf, uint64_t length)
{
	uint32_t flags = __atomic_load_n(&buf->control->flags, __ATOMIC_ACQUIRE);
	if (flags & RELAY_CLOSED)
		return -EPIPE;
	if (flags & RELAY_STOPPED)
		return refuse(buf, &buf->control->lost_disabled, length, -ECANCELED);
	return 0;
}

/* Has the reader left the sub-buffer that pos begins? */
static bool has_room(const struct rchan_buf *buf, uint64_t pos)
{
	if (buf->mode != RELAY_NO_OVERWRITE)
		return true;
	/* Pairs with the release in consume.c: the reader's loads before our stores. */
	uint64_t consumed = __atomic_load_n(&buf->control->consumed, __ATOMIC_ACQUIRE);
	return relay_pos_number(buf, pos) - relay_pos_number(buf, consumed) < buf->n_subbufs;
}

static void note_switch(struct rchan_buf *buf)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME_COARSE, &now);
	/* Relaxed: for people. */
	__atomic_store_n(&buf->control->switch_time_ns, (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec,
	                 __ATOMIC_RELAXED);
	/* With a callback, what is finished is finished when the callback has seen it. */
	if (buf->mode != RELAY_CALLBACK)
		relay_wake_switch(buf);
}

/*
 * Leave the sub-buffer that `seen` is in. DONE, MOVED or ABORTED as relay_change(); STOPPED: not possible (a living
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
	/* In mode callback, nothing is overwritten before the callback has said so. */
	if (next <= pos || (buf->mode == RELAY_OVERWRITE && relay_claims_hold(buf, next)))
		return RELAY_RSEQ_STOPPED;

	struct relay_tx tx = {
	    .expect_first = seen->expect_first,
	    .expect_second = seen->expect_second,
	    .new_first = next,
	    .new_second = records,
	    .store = {{&left->end, pos}, {&entered->start_records, records}, {&entered->start_bytes, bytes}}};
	struct relay_claim *claim = NULL;
	if (buf->scheme == RELAY_SCHEME_LOCKLESS) {
		claim = relay_claim_take(buf);
		if (!claim)
			return RELAY_RSEQ_STOPPED;
		relay_claim_state(claim, pos, RELAY_CLAIM_SWITCH, records, bytes);
		tx.new_second |= relay_claim_owner_bits(buf, claim);
	}
	enum relay_rseq_result result = relay_change(buf, &buf->control->head, &tx);
	if (claim) {
		if (result == RELAY_RSEQ_DONE)
			relay_claims_help(buf, next, tx.new_second);
		relay_claim_release(claim);
		relay_claim_give_back(buf, claim);
	}
	if (result == RELAY_RSEQ_DONE) {
		if (buf->mode == RELAY_OVERWRITE)
			relay_claims_drop_holes(buf, next);
		note_switch(buf);
	}
	return result;
}

enum place {
	PLACE_HERE,  /* the record fits where head is */
	PLACE_AGAIN, /* head moved: look again */
	PLACE_ABORTED,
	/* from here on: refused */
	PLACE_FULL,
	PLACE_TOO_LARGE, /* for what the header leaves */
	PLACE_IN_CALLBACK,
	PLACE_DAMAGED
};

/* Ask subbuf_start. */
static enum place begin_place(struct rchan_buf *buf, uint64_t length)
{
	uint64_t header;
	switch (relay_begin(buf, &header)) {
	case RELAY_BEGUN:
		return length > buf->subbuf_size - header ? PLACE_TOO_LARGE : PLACE_AGAIN;
	case RELAY_NOT_YET:
		return PLACE_FULL;
	case RELAY_IN_CALLBACK:
		return PLACE_IN_CALLBACK;
	default:
		return PLACE_DAMAGED;
	}
}

/* Where head may be changed from, after `seen`: switches if it must. */
static enum place find_place(struct rchan_buf *buf, const struct relay_tx *seen, uint64_t length)
{
	uint64_t pos = seen->expect_first & RELAY_POSITION_MASK, offset = relay_pos_offset(buf, pos);
	if (!relay_pos_valid(buf, pos))
		return PLACE_DAMAGED;
	relay_claims_help(buf, pos, seen->expect_second);
	if (!relay_has_begun(buf, pos))
		return begin_place(buf, length);
	if (offset == 0)
		return has_room(buf, pos) ? PLACE_HERE : PLACE_FULL;
	if (length <= buf->subbuf_size - offset)
		return PLACE_HERE;
	switch (switch_subbuf(buf, seen)) {
	case RELAY_RSEQ_STOPPED:
		return PLACE_FULL;
	case RELAY_RSEQ_ABORTED:
		return PLACE_ABORTED;
	default:
		return PLACE_AGAIN;
	}
}

/* There is no place. */
static int refuse_place(struct rchan_buf *buf, enum place place, uint64_t length)
{
	switch (place) {
	case PLACE_FULL:
		return relay_refuse_full(buf, length);
	case PLACE_TOO_LARGE:
		return relay_refuse_too_large(buf, length);
	case PLACE_IN_CALLBACK:
		return -EDEADLK;
	default:
		return -EBADMSG;
	}
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
	return relay_change(buf, &buf->control->head, seen);
}

static enum relay_rseq_result put_record(struct rchan_buf *buf, struct relay_tx *seen, const void *data, size_t length)
{
	if (names_claim(seen))
		return clear_owner(buf, seen) == RELAY_RSEQ_ABORTED ? RELAY_RSEQ_ABORTED : RELAY_RSEQ_MOVED;
	RELAY_PUBLISHES(&buf->control->head.first);
	return relay_rseq_record(buf->control, seen->expect_first, (seen->expect_first + length) ^ RELAY_PAIR_TOGGLE,
	                         relay_pos_data(buf, seen->expect_first), data, length, buf->cpu);
}

int relay_write_rseq_slow(struct rchan_buf *buf, const void *data, size_t length)
{
	if (length == 0)
		return 0;
	int moves = 0;
	for (int aborts = 0; aborts <= MAX_ABORTS;) {
		int err = refuse_stopped(buf, length);
		if (err)
			return err;
		if (length > buf->subbuf_size)
			return relay_refuse_too_large(buf, length);
		struct relay_tx seen = relay_look(buf, &buf->control->head);
		enum place place = find_place(buf, &seen, length);
		enum relay_rseq_result result = RELAY_RSEQ_MOVED;
		if (place >= PLACE_FULL)
			return refuse_place(buf, place, length);
		if (moves++ > MAX_MOVES)
			return -EBADMSG;
		if (place == PLACE_HERE)
			result = put_record(buf, &seen, data, length);
		if (result == RELAY_RSEQ_DONE) {
			relay_wake_record(buf);
			return 0;
		}
		if (result == RELAY_RSEQ_ABORTED || place == PLACE_ABORTED) {
			err = relay_misplaced(buf);
			if (err)
				return err;
			aborts++;
		}
	}
	return relay_write_claimed(buf, data, length);
}

/* Reserve `length` bytes for the claim; without one (NULL) they count as written at once. 0 and where they are, or as
 * relay_write(). */
static int reserve(struct rchan_buf *buf, struct relay_claim *claim, size_t length, void **to)
{
	for (;;) {
		struct relay_tx tx = relay_look(buf, &buf->control->head);
		/* After the look: whoever stops the buffer sets the flag, then changes head. */
		int err = refuse_stopped(buf, length);
		if (err)
			return err;
		enum place place = find_place(buf, &tx, length);
		enum relay_rseq_result result = place == PLACE_ABORTED ? RELAY_RSEQ_ABORTED : RELAY_RSEQ_MOVED;
		if (place >= PLACE_FULL)
			return refuse_place(buf, place, length);
		if (place == PLACE_HERE) {
			uint64_t pos = tx.expect_first & RELAY_POSITION_MASK;
			uint64_t records = tx.expect_second & RELAY_RECORDS_MASK;
			if (claim)
				relay_claim_state(claim, pos, length, records, 0);
			tx.new_first = pos + length;
			tx.new_second = (records + 1) | (claim ? relay_claim_owner_bits(buf, claim) : 0);
			tx.refuse = RELAY_STOPPED;
			*to = relay_pos_data(buf, pos);
			result = relay_change(buf, &buf->control->head, &tx);
		}
		if (result == RELAY_RSEQ_DONE)
			return 0;
		if (claim)
			relay_claim_withdraw(claim);
		err = result == RELAY_RSEQ_ABORTED ? relay_misplaced(buf) : 0;
		if (err)
			return err;
	}
}

/* Larger than any record can be? 0 if not. */
static int refuse_oversize(struct rchan_buf *buf, size_t length)
{
	if (length <= buf->subbuf_size)
		return 0;
	int err = refuse_stopped(buf, length);
	return err ? err : relay_refuse_too_large(buf, length);
}

int relay_reserve_visible(struct rchan_buf *buf, size_t length, void **to)
{
	int err = refuse_oversize(buf, length);
	return err ? err : reserve(buf, NULL, length, to);
}

int relay_reserve_claimed(struct rchan_buf *buf, size_t length, struct relay_claim **claim, void **to)
{
	int err = refuse_oversize(buf, length);
	if (err)
		return err;
	*claim = relay_claim_take(buf);
	if (!*claim)
		return relay_refuse_full(buf, length);
	err = reserve(buf, *claim, length, to);
	if (err) {
		relay_claim_release(*claim);
		relay_claim_give_back(buf, *claim);
	}
	return err;
}

int relay_write_claimed(struct rchan_buf *buf, const void *data, size_t length)
{
	if (length == 0)
		return 0;
	if (relay_is_full(buf, __atomic_load_n(&buf->control->head.first, __ATOMIC_RELAXED)) &&
	    length <= buf->subbuf_size)
		return relay_refuse_full(buf, length);
	struct relay_claim *claim;
	void *to = NULL;
	int err = relay_reserve_claimed(buf, length, &claim, &to);
	if (err)
		return err;
	memcpy(to, data, length);
	relay_claim_release(claim);
	relay_claim_give_back(buf, claim);
	relay_wake_record(buf);
	return 0;
}

/* As in the kernel, subbuf_start is asked at once; no is an answer. */
static int begin_after_flush(struct rchan_buf *buf)
{
	uint64_t header;
	switch (relay_begin(buf, &header)) {
	case RELAY_IN_CALLBACK:
		return -EDEADLK;
	case RELAY_BEGIN_DAMAGED:
		return -EBADMSG;
	default:
		return 0;
	}
}

int relay_switch(struct rchan_buf *buf)
{
	for (int err;;) {
		struct relay_tx seen = relay_look(buf, &buf->control->head);
		uint64_t pos = seen.expect_first & RELAY_POSITION_MASK;
		if (!relay_pos_valid(buf, pos))
			return -EBADMSG;
		relay_claims_help(buf, pos, seen.expect_second);
		if (!relay_has_begun(buf, pos))
			return begin_after_flush(buf);
		/* A full buffer waits at the start of a sub-buffer that is not free: there is nothing to leave. */
		if (relay_pos_offset(buf, pos) == 0 && !has_room(buf, pos))
			return 0;
		switch (switch_subbuf(buf, &seen)) {
		case RELAY_RSEQ_DONE:
			return buf->mode == RELAY_CALLBACK ? begin_after_flush(buf) : 0;
		case RELAY_RSEQ_STOPPED:
			return -EBUSY;
		case RELAY_RSEQ_ABORTED:
			if ((err = relay_misplaced(buf)))
				return err;
			break;
		case RELAY_RSEQ_MOVED:
			break;
		}
	}
}
