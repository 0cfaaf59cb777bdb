/* SPDX-License-Identifier: MIT */
/*
 * Operations on one buffer by threads that are not its usual writers: flush, stop, reset, and writing or
 * reserving from another CPU.
 *
 * In scheme rseq all of them run on the buffer's CPU. While a thread runs there, each section that another thread had
 * entered has ended or been aborted. In the other schemes, a change of head by compare-and-swap makes the
 * compare-and-swaps of other threads fail.
 */
#define _GNU_SOURCE
#include "base/affinity.h"
#include "buffer/claims.h"
#include "buffer/consumer.h"
#include "buffer/deliveries.h"
#include "buffer/holes.h"
#include "buffer/reserve.h"
#include "buffer/subbuf_start.h"
#include "buffer/try_reserve.h"
#include "buffer/timed.h"
#include "buffer/write.h"

#include <string.h>
#include <time.h>

enum { RESET_WAIT_MS = 1000, MAX_MIGRATIONS = 100 };

/* Change a latch. `make` fills in the new values of the transaction from the expected ones; it is called again if
 * another thread changes the latch in between, and returns false if nothing has to be changed. Returns 0,
 * RELAY_WRONG_CPU, -ENOTSUP or -EBADMSG. */
static int change_head(struct rchan_buf *buf, struct relay_latch *latch,
                       bool (*make)(struct rchan_buf *, struct relay_tx *))
{
	for (int tries = 0; tries < RELAY_CHANGE_TRIES; tries++) {
		struct relay_tx tx = relay_tx_load(buf, latch);
		if (!make(buf, &tx))
			return 0;
		enum relay_rseq_result result = relay_tx_commit(buf, latch, &tx);
		if (result == RELAY_RSEQ_DONE)
			return 0;
		int err = result == RELAY_RSEQ_ABORTED ? relay_rseq_misplaced(buf->cpu) : 0;
		if (err)
			return err;
	}
	return relay_damage_say(&buf->damage, "relay_control.head keeps changing");
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

static int seal(struct rchan_buf *buf)
{
	return change_head(buf, &buf->control->head, make_sealed);
}

static bool make_cleared_head(struct rchan_buf *buf, struct relay_tx *tx)
{
	struct relay_subbuf *first = relay_pos_entry(buf, 0);
	tx->new_second = buf->scheme != RELAY_RSEQ ? RELAY_OWNER_SEAL << RELAY_OWNER_SHIFT : 0;
	tx->store[0].at = &first->start_records;
	tx->store[1].at = &first->start_bytes;
	return true;
}

static bool make_zero(struct rchan_buf *buf, struct relay_tx *tx)
{
	(void)buf;
	return (tx->expect_first & ~RELAY_LATCH_INDEX) || tx->expect_second;
}

static int clear(struct rchan_buf *buf)
{
	struct relay_control *control = buf->control;
	struct relay_latch *losses[] = {&control->lost_full, &control->lost_disabled, &control->lost_too_large};
	/* Relaxed: start_again() publishes all that is stored here. */
	__atomic_store_n(&control->asked, 0, __ATOMIC_RELAXED);
	control->delivered = control->caught_up = control->ending = control->starting = control->wanted = 0;
	/* Records of later laps have overwritten the bytes that are reserved at the start. */
	if (!relay_is_unallocated(buf))
		memset(buf->data, 0, relay_reserved_at(buf, 0));
	int err = change_head(buf, &control->head, make_cleared_head);
	if (buf->scheme != RELAY_RSEQ) {
		/* In scheme rseq, change_head() has stored them. Relaxed: as above. */
		__atomic_store_n(&relay_pos_entry(buf, 0)->start_records, 0, __ATOMIC_RELAXED);
		__atomic_store_n(&relay_pos_entry(buf, 0)->start_bytes, 0, __ATOMIC_RELAXED);
	}
	for (size_t i = 0; !err && i < sizeof(losses) / sizeof(losses[0]); i++)
		err = change_head(buf, losses[i], make_zero);
	return err;
}

/* Call step(buf, arg), on the buffer's CPU if it returns RELAY_WRONG_CPU elsewhere. Returns its result; -EPERM: this
 * thread may not run on that CPU, or has no restartable sequences. */
static int on_cpu(struct rchan_buf *buf, int (*step)(struct rchan_buf *, const void *), const void *arg)
{
	struct relay_affinity affinity;
	affinity.active = false;
	int err = step(buf, arg);
	/* Hot-unplug or another thread may move this thread away again; give up after MAX_MIGRATIONS. */
	for (int tries = 0; err == RELAY_WRONG_CPU; tries++) {
		err = tries < MAX_MIGRATIONS ? relay_migrate(buf->cpu, &affinity) : -EPERM;
		if (!err)
			err = step(buf, arg);
	}
	relay_migrate_back(&affinity);
	return err == -ENOTSUP ? -EPERM : err;
}

struct record {
	const void *data;
	size_t length;
};

static int write_step(struct rchan_buf *buf, const void *arg)
{
	const struct record *record = arg;
	if (buf->is_timed)
		return relay_timed_write(buf, record->data, record->length, false);
	if (buf->scheme == RELAY_RSEQ)
		return relay_write_rseq_slow(buf, record->data, record->length, NULL, false);
	return relay_write_shared(buf, record->data, record->length, NULL, false);
}

/* Write a record for which the maker's thread will call deliver(). It is written with a
 * claim, which has its position. */
static int write_noted(struct rchan_buf *buf, const void *data, size_t length)
{
	struct relay_slot slot = {.to = NULL};
	if (relay_deliveries_full(buf))
		return -EBUSY;
	int err = relay_reserve_claimed(buf, length, &slot);
	if (err)
		return err;
	uint64_t pos = relay_claim_position(slot.claim);
	memcpy(slot.to, data, length);
	relay_commit_claim(buf, slot.claim);
	relay_deliveries_add(buf, pos, length);
	return 0;
}

int relay_buf_write(struct rchan_buf *buf, const void *data, size_t length)
{
	/* Channels of classic.h never have scheme rseq, so that this need not run on a certain CPU. */
	bool is_noted = length && !buf->is_timed && buf->scheme != RELAY_RSEQ && relay_deliveries_wanted(buf);
	int err = is_noted ? write_noted(buf, data, length) : on_cpu(buf, write_step, &(struct record){data, length});
	/* If the file was truncated, the SIGBUS handler of base/mapping.c has mapped zero pages, into
	 * which the record was written. */
	return __atomic_load_n(&buf->control->geometry.magic, __ATOMIC_RELAXED) == RELAY_MAGIC ? err : -EBADMSG;
}

struct reservation {
	size_t length;
	void **to;
};

static int reserve_step(struct rchan_buf *buf, const void *arg)
{
	const struct reservation *reservation = arg;
	return relay_reserve_here(buf, reservation->length, false, reservation->to);
}

int relay_buf_reserve(struct rchan_buf *buf, size_t length, void **to)
{
	return on_cpu(buf, reserve_step, &(struct reservation){length, to});
}

static int refuse_step(struct rchan_buf *buf, const void *arg)
{
	return relay_refuse_too_large(buf, *(const size_t *)arg);
}

int relay_buf_refuse_too_large(struct rchan_buf *buf, size_t length)
{
	return on_cpu(buf, refuse_step, &length);
}

static int flush_step(struct rchan_buf *buf, const void *arg)
{
	(void)arg;
	return relay_switch(buf);
}

int relay_buf_flush(struct rchan_buf *buf)
{
	/* Relaxed: no other load depends on it. */
	if (__atomic_load_n(&buf->control->flags, __ATOMIC_RELAXED) & RELAY_CLOSED)
		return -EPIPE;
	return on_cpu(buf, flush_step, NULL);
}

static int check_cpu_step(struct rchan_buf *buf, const void *arg)
{
	(void)arg;
	/* When this thread runs on the buffer's CPU, the sections of all others there were aborted. */
	return relay_rseq_cpu() == buf->cpu ? 0 : RELAY_WRONG_CPU;
}

static int settle(struct rchan_buf *buf)
{
	if (buf->scheme != RELAY_RSEQ)
		return seal(buf);
	return on_cpu(buf, check_cpu_step, NULL);
}

int relay_buf_stop(struct rchan_buf *buf, uint32_t flag, int on)
{
	int err = 0;
	flag &= RELAY_STOPPED;
	if (on) {
		/* Pairs with the load of the flags in each section, and with relay_refuse_stopped(), which is
		 * called after relay_tx_load(). */
		__atomic_fetch_or(&buf->control->flags, flag, __ATOMIC_SEQ_CST);
		err = settle(buf);
	} else {
		/* Pairs with wait_or_refuse() in buffer/try_reserve.c: what a reset has stored is seen. */
		__atomic_fetch_and(&buf->control->flags, ~flag, __ATOMIC_SEQ_CST);
	}
	relay_wake(buf, RELAY_ARMED);
	return err;
}

static int wait_for_claims(struct rchan_buf *buf)
{
	for (int waited = 0; relay_claims_busy(buf); waited++) {
		if (waited >= RESET_WAIT_MS)
			return -EBUSY;
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	}
	return 0;
}

static int reset_step(struct rchan_buf *buf, const void *arg)
{
	(void)arg;
	return clear(buf);
}

/* Clear the buffer, when no writer is inside. It takes the switch lock, because a callback, which runs with
 * that lock, may read anything. */
static int start_again(struct rchan_buf *buf)
{
	sigset_t before;
	uint64_t header;
	int err = relay_switch_lock(buf, &before);
	if (err)
		return err;
	/* Relaxed: only the holder of the reader lock changes it. It is odd if the thread of
	 * an earlier reset has died. */
	uint32_t resets = __atomic_load_n(&buf->control->resets, __ATOMIC_RELAXED) | 1;
	/* Pairs with was_reset_since() in buffer/stats.c: a thread that sees one of the changes below
	 * also sees the odd number. */
	__atomic_store_n(&buf->control->resets, resets, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_RELEASE);
	err = on_cpu(buf, reset_step, NULL);
	if (!err) {
		relay_claims_clear(buf);
		relay_holes_clear(buf);
		relay_consumer_clear(buf);
	}
	/* Pairs with load_moment() in buffer/stats.c: a thread that sees the even number also sees all changes above. */
	__atomic_store_n(&buf->control->resets, resets + 1, __ATOMIC_RELEASE);
	relay_switch_unlock(buf, &before);
	if (!err && !relay_has_begun(buf, 0))
		relay_subbuf_start(buf, &header);
	return err;
}

int relay_buf_reset(struct rchan_buf *buf)
{
	/* Relaxed: no other load depends on it. */
	uint32_t flags = __atomic_load_n(&buf->control->flags, __ATOMIC_RELAXED);
	if (flags & RELAY_CLOSED)
		return -EPIPE;
	int err = relay_reader_lock(buf);
	if (err)
		return err;
	err = relay_buf_stop(buf, RELAY_RESETTING, 1);
	if (!err)
		err = wait_for_claims(buf);
	if (!err)
		err = start_again(buf);
	relay_buf_stop(buf, RELAY_RESETTING, 0);
	relay_reader_unlock(buf);
	return err;
}
