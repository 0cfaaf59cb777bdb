/* SPDX-License-Identifier: MIT */
/*
 * Writing one buffer, all that is not the fast path.
 *
 * Both schemes walk the same way from a record to its place:
 *
 *     head ──> stopped?  ──> too large? ──> at offset 0: has the reader left this sub-buffer?   (no-overwrite)
 *                                           does not fit: switch, look again
 *
 * and differ in how head changes: in scheme rseq by a restartable section on the buffer's CPU, in scheme
 * lockless by a 16-byte compare-and-swap. A switch is a change of its own, published before anything is
 * stored in the new sub-buffer: so a reader that was lapped can always tell.
 */
#define _GNU_SOURCE
#include "write.h"

#include "claims.h"
#include "manage.h"

#include <string.h>
#include <time.h>

enum {
	/* A section restarted this often is too long for the signals (or the debugger) around it. */
	MAX_ABORTS = 8,
	/* Nobody else changes head on this CPU without an abort of ours: so often only nonsense makes it. */
	MAX_MOVES = 10000
};

/* Change a pair in the buffer's way; `tx` holds what was seen (raw, with its toggle) and what shall be. */
static enum relay_rseq_result change(struct rchan_buf *buf, struct relay_pair *pair, struct relay_tx *tx)
{
	static uint64_t nowhere;
	if (buf->scheme == RELAY_SCHEME_LOCKLESS) {
		if (relay_pair_swap(pair, tx->expect_first, tx->expect_second, tx->new_first, tx->new_second))
			return RELAY_RSEQ_DONE;
		return RELAY_RSEQ_MOVED;
	}
	for (int i = 0; i < 3; i++)
		if (!tx->store[i].at)
			tx->store[i].at = &nowhere;
	tx->new_first |= ~tx->expect_first & RELAY_PAIR_TOGGLE;
	return relay_rseq_transact(pair, &buf->control->flags, tx, buf->cpu);
}

/* What lies there, raw. Not consistent: the change that follows finds out. In a lockless buffer the toggle is
 * never set; were it, by somebody's nonsense, the other second word would never match. */
static struct relay_tx look(const struct rchan_buf *buf, const struct relay_pair *pair)
{
	struct relay_tx tx = {.expect_first = __atomic_load_n(&pair->first, __ATOMIC_ACQUIRE)};
	unsigned valid = buf->scheme == RELAY_SCHEME_LOCKLESS ? 0 : tx.expect_first >> 63;
	tx.expect_second = __atomic_load_n(&pair->second[valid], __ATOMIC_ACQUIRE);
	return tx;
}

/* After an abort: is there a reason to give up on this CPU? 0: it was only an interruption. */
static int misplaced(const struct rchan_buf *buf)
{
	if (!relay_rseq_registered())
		return -ENOTSUP;
	return relay_rseq_cpu() == buf->cpu ? 0 : RELAY_WRONG_CPU;
}

static enum relay_rseq_result tally(struct rchan_buf *buf, struct relay_pair *lost, uint64_t length)
{
	if (buf->scheme == RELAY_SCHEME_RSEQ)
		return relay_rseq_tally(lost, length, buf->cpu);
	struct relay_tx tx = look(buf, lost);
	tx.new_first = tx.expect_first + 1;
	tx.new_second = tx.expect_second + length;
	return change(buf, lost, &tx);
}

/* Count a refused record. Returns `err`, or what misplaced() says: then it was not counted. */
static int refuse(struct rchan_buf *buf, struct relay_pair *lost, uint64_t length, int err)
{
	for (;;) {
		enum relay_rseq_result result = tally(buf, lost, length);
		if (__builtin_expect(result == RELAY_RSEQ_DONE, 1))
			return err;
		int gone = result == RELAY_RSEQ_ABORTED ? misplaced(buf) : 0;
		if (gone)
			return gone;
	}
}

static int refuse_full(struct rchan_buf *buf, uint64_t length)
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
	if (buf->mode == RELAY_OVERWRITE)
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
	relay_wake_switch(buf);
}

/*
 * Leave the sub-buffer that `seen` is in. DONE, MOVED or ABORTED as change(); STOPPED: not possible (a living
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
	if (next <= pos || (buf->mode == RELAY_OVERWRITE && !relay_claims_let_lap(buf, next)))
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
	enum relay_rseq_result result = change(buf, &buf->control->head, &tx);
	if (claim) {
		if (result == RELAY_RSEQ_DONE)
			relay_claims_help(buf, next, tx.new_second);
		relay_claim_release(claim);
		relay_claim_give_back(buf, claim);
	}
	if (result == RELAY_RSEQ_DONE)
		note_switch(buf);
	return result;
}

enum place {
	PLACE_HERE,  /* the record fits where head is */
	PLACE_AGAIN, /* head moved: look again */
	PLACE_ABORTED,
	PLACE_FULL,
	PLACE_DAMAGED
};

/* Where head may be changed from, after `seen`: switches if it must. */
static enum place find_place(struct rchan_buf *buf, const struct relay_tx *seen, uint64_t length)
{
	uint64_t pos = seen->expect_first & RELAY_POSITION_MASK, offset = relay_pos_offset(buf, pos);
	if (!relay_pos_valid(buf, pos))
		return PLACE_DAMAGED;
	relay_claims_help(buf, pos, seen->expect_second);
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

static bool names_claim(const struct relay_tx *seen)
{
	return seen->expect_second >> RELAY_OWNER_SHIFT != 0;
}

/* Let a fully helped claim's name go from head, so that plain writes may follow. */
static enum relay_rseq_result clear_owner(struct rchan_buf *buf, struct relay_tx *seen)
{
	seen->new_first = seen->expect_first & RELAY_POSITION_MASK;
	seen->new_second = seen->expect_second & RELAY_RECORDS_MASK;
	return change(buf, &buf->control->head, seen);
}

static enum relay_rseq_result put_record(struct rchan_buf *buf, struct relay_tx *seen, const void *data, size_t length)
{
	if (names_claim(seen))
		return clear_owner(buf, seen) == RELAY_RSEQ_ABORTED ? RELAY_RSEQ_ABORTED : RELAY_RSEQ_MOVED;
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
		struct relay_tx seen = look(buf, &buf->control->head);
		enum place place = find_place(buf, &seen, length);
		enum relay_rseq_result result = RELAY_RSEQ_MOVED;
		if (place == PLACE_FULL)
			return refuse_full(buf, length);
		if (place == PLACE_DAMAGED || moves++ > MAX_MOVES)
			return -EBADMSG;
		if (place == PLACE_HERE)
			result = put_record(buf, &seen, data, length);
		if (result == RELAY_RSEQ_DONE) {
			relay_wake_record(buf);
			return 0;
		}
		if (result == RELAY_RSEQ_ABORTED || place == PLACE_ABORTED) {
			err = misplaced(buf);
			if (err)
				return err;
			aborts++;
		}
	}
	return relay_write_claimed(buf, data, length);
}

/* Reserve `length` bytes for the claim. 0 and where they are, or as relay_write(). */
static int reserve(struct rchan_buf *buf, struct relay_claim *claim, size_t length, void **to)
{
	for (;;) {
		struct relay_tx tx = look(buf, &buf->control->head);
		/* After the look: whoever stops the buffer sets the flag, then changes head. */
		int err = refuse_stopped(buf, length);
		if (err)
			return err;
		enum place place = find_place(buf, &tx, length);
		enum relay_rseq_result result = place == PLACE_ABORTED ? RELAY_RSEQ_ABORTED : RELAY_RSEQ_MOVED;
		if (place == PLACE_FULL)
			return refuse_full(buf, length);
		if (place == PLACE_DAMAGED)
			return -EBADMSG;
		if (place == PLACE_HERE) {
			uint64_t pos = tx.expect_first & RELAY_POSITION_MASK;
			uint64_t records = tx.expect_second & RELAY_RECORDS_MASK;
			relay_claim_state(claim, pos, length, records, 0);
			tx.new_first = pos + length;
			tx.new_second = (records + 1) | relay_claim_owner_bits(buf, claim);
			tx.refuse = RELAY_STOPPED;
			*to = relay_pos_data(buf, pos);
			result = change(buf, &buf->control->head, &tx);
		}
		if (result == RELAY_RSEQ_DONE)
			return 0;
		relay_claim_release(claim);
		err = result == RELAY_RSEQ_ABORTED ? misplaced(buf) : 0;
		if (err)
			return err;
	}
}

int relay_write_claimed(struct rchan_buf *buf, const void *data, size_t length)
{
	if (length == 0)
		return 0;
	if (length > buf->subbuf_size) {
		int err = refuse_stopped(buf, length);
		return err ? err : relay_refuse_too_large(buf, length);
	}
	struct relay_claim *claim = relay_claim_take(buf);
	if (!claim)
		return refuse_full(buf, length);
	void *to = NULL;
	int err = reserve(buf, claim, length, &to);
	if (!err) {
		memcpy(to, data, length);
		relay_claim_release(claim);
		relay_wake_record(buf);
	}
	relay_claim_give_back(buf, claim);
	return err;
}

/* Carry out a change of head until it happens. `make` fills in what shall be from what is; 0 from it: nothing
 * to do. */
static int change_head(struct rchan_buf *buf, struct relay_pair *pair,
                       bool (*make)(struct rchan_buf *, struct relay_tx *))
{
	for (;;) {
		struct relay_tx tx = look(buf, pair);
		if (!make(buf, &tx))
			return 0;
		enum relay_rseq_result result = change(buf, pair, &tx);
		if (result == RELAY_RSEQ_DONE)
			return 0;
		int err = result == RELAY_RSEQ_ABORTED ? misplaced(buf) : 0;
		if (err)
			return err;
	}
}

int relay_switch(struct rchan_buf *buf)
{
	for (int err;;) {
		struct relay_tx seen = look(buf, &buf->control->head);
		uint64_t pos = seen.expect_first & RELAY_POSITION_MASK;
		if (!relay_pos_valid(buf, pos))
			return -EBADMSG;
		relay_claims_help(buf, pos, seen.expect_second);
		/* A full buffer waits at the start of a sub-buffer that is not free: there is nothing to leave. */
		if (relay_pos_offset(buf, pos) == 0 && !has_room(buf, pos))
			return 0;
		switch (switch_subbuf(buf, &seen)) {
		case RELAY_RSEQ_DONE:
			return 0;
		case RELAY_RSEQ_STOPPED:
			return -EBUSY;
		case RELAY_RSEQ_ABORTED:
			if ((err = misplaced(buf)))
				return err;
			break;
		case RELAY_RSEQ_MOVED:
			break;
		}
	}
}

static bool make_sealed(struct rchan_buf *buf, struct relay_tx *tx)
{
	uint64_t pos = tx->expect_first & RELAY_POSITION_MASK;
	if (relay_pos_valid(buf, pos))
		relay_claims_help(buf, pos, tx->expect_second);
	uint64_t seal = ((tx->expect_second >> RELAY_OWNER_SHIFT) + 1) | RELAY_OWNER_SEAL;
	tx->new_first = pos;
	tx->new_second = (tx->expect_second & RELAY_RECORDS_MASK) | seal << RELAY_OWNER_SHIFT;
	return true;
}

int relay_seal(struct rchan_buf *buf)
{
	return change_head(buf, &buf->control->head, make_sealed);
}

static bool make_cleared_head(struct rchan_buf *buf, struct relay_tx *tx)
{
	struct relay_subbuf *first = relay_pos_ledger(buf, 0);
	tx->new_second = buf->scheme == RELAY_SCHEME_LOCKLESS ? RELAY_OWNER_SEAL << RELAY_OWNER_SHIFT : 0;
	tx->store[0].at = &first->start_records;
	tx->store[1].at = &first->start_bytes;
	return true;
}

static bool make_zero(struct rchan_buf *buf, struct relay_tx *tx)
{
	(void)buf;
	return (tx->expect_first & ~RELAY_PAIR_TOGGLE) || tx->expect_second;
}

int relay_clear(struct rchan_buf *buf)
{
	struct relay_control *control = buf->control;
	struct relay_pair *losses[] = {&control->lost_full, &control->lost_disabled, &control->lost_too_large};
	int err = change_head(buf, &control->head, make_cleared_head);
	if (buf->scheme == RELAY_SCHEME_LOCKLESS) {
		__atomic_store_n(&relay_pos_ledger(buf, 0)->start_records, 0, __ATOMIC_RELAXED);
		__atomic_store_n(&relay_pos_ledger(buf, 0)->start_bytes, 0, __ATOMIC_RELAXED);
	}
	for (int i = 0; !err && i < 3; i++)
		err = change_head(buf, losses[i], make_zero);
	return err;
}
