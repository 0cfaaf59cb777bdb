/* SPDX-License-Identifier: MIT */
/*
 * How a sub-buffer begins if rchan_buf.begins: who decides it, and when.
 *
 *     head = {n, 0}            a switch: published; the previous sub-buffer gets no more records
 *     switch_lock              the next writer takes it; others wait
 *     buf->begin(...)          decides by the mode, calls subbuf_start, or the callbacks of 2003 (classic.h)
 *     head = {n, reserved}     begun, with bytes reserved at its start
 *     asked = n + 1, YES       begun, without such bytes
 *     asked = n + 1, ENDED     not begun, but the previous sub-buffer is finished; the next write tries again
 *
 * While head is at the start of a sub-buffer that has not begun, only the holder of the lock moves it from there,
 * because restartable sections are entered only where records may be stored. So the holder may change head by plain
 * stores, from any CPU.
 *
 * A client's callback runs in the middle of this, and its process may be killed there. The lock is robust: the next
 * holder calls the callback of its own client. The dead client may have stored over the data of the oldest sub-buffer;
 * RELAY_ASKED_SPOILED says so.
 */
#define _GNU_SOURCE
#include "buffer/subbuf_start.h"

#include "base/owner.h"
#include "base/robust_lock.h"
#include "buffer/claims.h"
#include "buffer/head.h"
#include "buffer/tx.h"
#include "buffer/wake.h"

#include <sched.h>
#include <time.h>

/* How long other processes wait for the maker's thread: MAKER_YIELDS calls of sched_yield() and, if
 * they may block, a second. */
enum { MAKER_YIELDS = 2, MAKER_PAUSES = 1000 };

void relay_say(struct rchan_buf *buf, uint64_t number, uint64_t bits)
{
	/* Pairs with the acquire in relay_asked(): what a callback stored before. */
	__atomic_store_n(&buf->control->asked, (number + 1) << RELAY_ASKED_SHIFT | bits, __ATOMIC_RELEASE);
}

/* Set RELAY_ASKED_SPOILED for sub-buffer `number`, unless `asked` is about a later one. Readers call it without the
 * lock; the next holder may change `asked` meanwhile. */
static void say_spoiled(struct rchan_buf *buf, uint64_t number)
{
	uint64_t *asked = &buf->control->asked, now = __atomic_load_n(asked, __ATOMIC_ACQUIRE);
	for (int tries = 0; tries < RELAY_CHANGE_TRIES && now >> RELAY_ASKED_SHIFT <= number + 1; tries++) {
		uint64_t bits = now >> RELAY_ASKED_SHIFT == number + 1 ? now : (number + 1) << RELAY_ASKED_SHIFT;
		/* Pairs with the acquire in relay_asked(): what a callback stored before. */
		if (__atomic_compare_exchange_n(asked, &now, bits | RELAY_ASKED_SPOILED, false, __ATOMIC_RELEASE,
		                                __ATOMIC_ACQUIRE))
			return;
	}
}

/* The last holder of the lock died. If it may have been in its client's callback, note that the
 * oldest data may be overwritten. */
static void note_dead_holder(struct rchan_buf *buf)
{
	uint64_t head, second;
	if (relay_head(buf, &head, &second) || relay_has_begun(buf, head))
		return;
	uint64_t number = relay_pos_number(buf, head);
	/* Relaxed: the dead holder stored it before this thread has loaded the lock's word with acquire. */
	if (__atomic_load_n(&buf->control->starting, __ATOMIC_RELAXED) == number + 1)
		say_spoiled(buf, number);
}

int relay_switch_lock(struct rchan_buf *buf, sigset_t *before)
{
	int result = relay_lock_take(&buf->control->switch_lock, relay_blocking(buf), &buf->wait_lost, before);
	if (result == 1)
		note_dead_holder(buf);
	return result < 0 ? result : 0;
}

int relay_switch_watch(struct rchan_buf *buf)
{
	int result = relay_lock_watch(&buf->control->switch_lock, relay_blocking(buf), &buf->wait_lost);
	if (result == 1)
		note_dead_holder(buf);
	return result;
}

void relay_switch_unlock(struct rchan_buf *buf, const sigset_t *before)
{
	relay_lock_release(&buf->control->switch_lock, relay_blocking(buf) == RELAY_QUIET ? NULL : before);
}

/* Change head's position from pos, the start of a sub-buffer that has not begun, to `next`. The
 * caller has the switch lock. */
static enum relay_subbuf_start move_head(struct rchan_buf *buf, uint64_t pos, uint64_t next)
{
	struct relay_latch *head = &buf->control->head;
	uint64_t now, second;
	for (int tries = 0; tries < RELAY_CHANGE_TRIES && !relay_head(buf, &now, &second) && now == pos; tries++) {
		uint64_t records = second & RELAY_RECORDS_MASK;
		if (buf->scheme != RELAY_RSEQ) {
			RELAY_PUBLISHES(&head->first);
			/* A full barrier; pairs as the store below. */
			if (relay_latch_cmpxchg(head, pos, second, next, records))
				return RELAY_BEGUN;
			continue; /* another thread has sealed head meanwhile (buffer/control.c) */
		}
		uint64_t other = ~__atomic_load_n(&head->first, __ATOMIC_RELAXED) >> 63;
		__atomic_store_n(&head->second[other], records, __ATOMIC_RELAXED);
		/* Pairs with the acquire in relay_latch_read(): the record count, and what the client
		 * stored, before the position. */
		__atomic_store_n(&head->first, next | other << 63, __ATOMIC_RELEASE);
		return RELAY_BEGUN;
	}
	return RELAY_SUBBUF_START_DAMAGED;
}

enum relay_subbuf_start relay_enter(struct rchan_buf *buf, uint64_t pos)
{
	if (buf->header) {
		enum relay_subbuf_start result = move_head(buf, pos, pos + buf->header);
		if (result != RELAY_BEGUN)
			return result;
	} else {
		relay_say(buf, relay_pos_number(buf, pos), RELAY_ASKED_ENDED | RELAY_ASKED_YES);
	}
	relay_claims_drop_holes(buf, pos);
	return RELAY_BEGUN;
}

struct relay_moment relay_stamp(struct rchan_buf *buf, uint64_t pos)
{
	struct relay_subbuf *entered = relay_pos_entry(buf, pos);
	struct relay_moment now = {0};
	if (buf->timestamp)
		now = relay_clock_moment(buf->timestamp);
	if (buf->packets || buf->is_timed)
		__atomic_store_n(&entered->start_lost, relay_lost(buf), __ATOMIC_RELAXED);
	/* Relaxed: published by relay_enter(). */
	__atomic_store_n(&entered->start_time_ns, now.time_ns, __ATOMIC_RELAXED);
	__atomic_store_n(&entered->start_clock, now.clock, __ATOMIC_RELAXED);
	return now;
}

static enum relay_subbuf_start begin_by_mode(struct rchan_buf *buf, uint64_t pos)
{
	uint64_t number = relay_pos_number(buf, pos);
	bool room = buf->mode == RELAY_OVERWRITE ? !relay_claims_hold(buf, pos) : relay_has_left(buf, pos);
	if (!room) {
		relay_say(buf, number, relay_asked(buf, number) | RELAY_ASKED_ENDED);
		return RELAY_NOT_YET;
	}
	/* The reserved bytes are zero, because no record was ever stored there. */
	buf->header = relay_reserved_at(buf, number);
	relay_stamp(buf, pos);
	return relay_enter(buf, pos);
}

/* Finish the empty sub-buffer at pos, if the reader has left the memory. The caller has the switch lock. */
static int pass_unallocated(struct rchan_buf *buf, uint64_t pos, uint64_t records)
{
	uint64_t number = relay_pos_number(buf, pos), next = relay_pos_next(buf, pos);
	uint64_t reserved = relay_reserved_at(buf, number);
	struct relay_subbuf *left = relay_pos_entry(buf, pos), *entered = relay_pos_entry(buf, next);
	bool room = buf->mode == RELAY_OVERWRITE || relay_has_left(buf, pos);
	if (next <= pos || !room)
		return 0;
	relay_stamp(buf, pos);
	/* Relaxed: published by the change of head in move_head(). */
	uint64_t bytes = __atomic_load_n(&left->start_bytes, __ATOMIC_RELAXED) + reserved;
	__atomic_store_n(&left->end, pos + reserved, __ATOMIC_RELAXED);
	__atomic_store_n(&entered->start_records, records, __ATOMIC_RELAXED);
	__atomic_store_n(&entered->start_bytes, bytes, __ATOMIC_RELAXED);
	if (move_head(buf, pos, next) != RELAY_BEGUN)
		return -EBADMSG;
	relay_say(buf, number + 1, RELAY_ASKED_ENDED);
	return 0;
}

int relay_finish_unallocated(struct rchan_buf *buf)
{
	sigset_t before;
	uint64_t pos, second;
	if (!relay_lost(buf))
		return 0;
	int err = relay_switch_lock(buf, &before);
	if (err)
		return err;
	err = relay_head(buf, &pos, &second);
	if (!err && relay_is_unallocated(buf) && !relay_has_begun(buf, pos))
		err = pass_unallocated(buf, pos, second & RELAY_RECORDS_MASK);
	relay_switch_unlock(buf, &before);
	relay_wake_switch(buf);
	return err;
}

/* The address of the sub-buffer before `number`, and its padding; NULL if there is none. Returns 0 or -EBADMSG. */
static int find_previous(const struct rchan_buf *buf, uint64_t number, void **subbuf, unsigned *padding)
{
	*subbuf = NULL;
	*padding = 0;
	if (number == 0)
		return 0;
	uint64_t start = relay_pos_start(buf, number - 1);
	/* Relaxed: published by the switch to sub-buffer `number`, which the caller has loaded as head. */
	uint64_t end = __atomic_load_n(&relay_pos_entry(buf, start)->end, __ATOMIC_RELAXED);
	if (relay_pos_number(buf, end) != number - 1 || !relay_pos_valid(buf, end))
		return -EBADMSG;
	*subbuf = relay_pos_data(buf, start);
	*padding = (unsigned)(buf->subbuf_size - relay_pos_offset(buf, end));
	return 0;
}

static enum relay_subbuf_start begin_by_callback(struct rchan_buf *buf, uint64_t pos)
{
	uint64_t number = relay_pos_number(buf, pos);
	void *previous;
	unsigned padding;
	if (find_previous(buf, number, &previous, &padding))
		return RELAY_SUBBUF_START_DAMAGED;
	buf->header = relay_reserved_at(buf, number);
	relay_stamp(buf, pos);
	bool yes = false;
	/* If a living writer still copies to this memory, one lap before, act as if the client had refused. */
	if (!relay_claims_hold(buf, pos)) {
		relay_note_start(buf, number);
		/* The first sub-buffer begins even if the client refuses, as in the kernel. */
		yes = buf->cb->subbuf_start(buf, relay_pos_data(buf, pos), previous, padding) || !previous;
	}
	if (yes)
		return relay_enter(buf, pos);
	relay_say(buf, number, (relay_asked(buf, number) & RELAY_ASKED_SPOILED) | RELAY_ASKED_ENDED);
	return RELAY_NOT_YET;
}

relay_subbuf_start_function *relay_subbuf_start_of_mode(const struct rchan_buf *buf)
{
	return buf->mode == RELAY_CALLBACK ? NULL : begin_by_mode;
}

/* Have the maker's thread, in another process, begin the sub-buffer, and wait for it. */
static enum relay_subbuf_start wait_for_maker(struct rchan_buf *buf, uint64_t pos)
{
	uint64_t head = pos, second;
	/* Relaxed: relay_wake_maker() orders it before the increment of map_seq, after which attend() in
	 * classic/classic.c loads it. */
	__atomic_store_n(&buf->control->wanted, relay_pos_number(buf, pos) + 1, __ATOMIC_RELAXED);
	relay_wake_maker(buf);
	for (int tries = 0; tries < (buf->may_block ? MAKER_PAUSES : MAKER_YIELDS); tries++) {
		if (relay_head(buf, &head, &second))
			return RELAY_SUBBUF_START_DAMAGED;
		if (head != pos || relay_has_begun(buf, head))
			return RELAY_BEGUN;
		if (relay_is_settled(buf, head))
			return RELAY_NOT_YET;
		if (tries < MAKER_YIELDS)
			sched_yield();
		else
			nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	}
	return RELAY_SUBBUF_START_BUSY;
}

/* This process may not decide. If the maker lives, its thread does. If not, note that the previous sub-buffer is
 * finished, so that readers get it; without the lock, because a file server waits for no client. */
static enum relay_subbuf_start begin_elsewhere(struct rchan_buf *buf, uint64_t pos)
{
	/* Relaxed: it only says which process to wake. */
	uint64_t maker = __atomic_load_n(&buf->control->maker, __ATOMIC_RELAXED);
	if (maker && relay_owner_alive(maker))
		return wait_for_maker(buf, pos);
	/* Pairs with relay_say() and, by the compare-and-swap, with relay_asked(). */
	uint64_t asked = __atomic_load_n(&buf->control->asked, __ATOMIC_ACQUIRE);
	uint64_t no = (relay_pos_number(buf, pos) + 1) << RELAY_ASKED_SHIFT;
	if (asked < no && __atomic_compare_exchange_n(&buf->control->asked, &asked, no | RELAY_ASKED_ENDED, false,
	                                              __ATOMIC_RELEASE, __ATOMIC_RELAXED))
		relay_wake_switch(buf);
	return RELAY_NOT_YET;
}

enum relay_subbuf_start relay_subbuf_start(struct rchan_buf *buf, uint64_t *header)
{
	sigset_t before;
	uint64_t pos, second;
	*header = 0;
	if (relay_head(buf, &pos, &second))
		return RELAY_SUBBUF_START_DAMAGED;
	if (relay_has_begun(buf, pos))
		return RELAY_BEGUN;
	if (relay_is_settled(buf, pos))
		return RELAY_NOT_YET;
	if (!buf->begin)
		return begin_elsewhere(buf, pos);
	/* Allocated before the lock is taken, because it takes long, and only threads of this
	 * program have to wait for it. */
	if (relay_is_unallocated(buf) && !(buf->allocate && buf->allocate(buf)))
		return RELAY_NOT_YET;
	int err = relay_switch_lock(buf, &before);
	if (err)
		return err == -EDEADLK ? RELAY_IN_CALLBACK : RELAY_SUBBUF_START_BUSY;
	enum relay_subbuf_start result = relay_head(buf, &pos, &second) ? RELAY_SUBBUF_START_DAMAGED : RELAY_BEGUN;
	uint64_t asked = buf->control->asked;
	if (result == RELAY_BEGUN && !relay_has_begun(buf, pos)) {
		relay_claims_help(buf, pos, second);
		/* The last holder of the lock may have found that the sub-buffer cannot begin yet. */
		result = relay_is_settled(buf, pos) ? RELAY_NOT_YET : buf->begin(buf, pos);
		*header = result == RELAY_BEGUN ? buf->header : 0;
	}
	bool is_decided = result == RELAY_BEGUN || buf->control->asked != asked;
	relay_switch_unlock(buf, &before);
	/* Readers are woken only now, because `begin` may change the finished sub-buffer, for example add a footer. */
	if (is_decided)
		relay_wake_switch(buf);
	if (is_decided && buf->begun)
		buf->begun(buf);
	return result;
}

void subbuf_start_reserve(struct rchan_buf *buf, size_t length)
{
	uint64_t pos, second;
	if (relay_head(buf, &pos, &second))
		return;
	uint64_t least = relay_reserved_at(buf, relay_pos_number(buf, pos));
	buf->header = length < least ? least : length < buf->subbuf_size ? length : buf->subbuf_size;
}

void relay_buf_set_callbacks(struct rchan_buf *buf, const struct rchan_callbacks *cb)
{
	uint64_t header;
	buf->cb = cb;
	buf->may_block = true;
	if (buf->mode == RELAY_CALLBACK && cb && cb->subbuf_start)
		buf->begin = begin_by_callback;
	if (!relay_has_begun(buf, 0))
		relay_subbuf_start(buf, &header);
}

int relay_buf_resume(struct rchan_buf *buf)
{
	sigset_t before;
	uint64_t pos, second;
	int locked = relay_switch_lock(buf, &before);
	/* -EDEADLK: this was called in a callback, with the lock. */
	if (locked && locked != -EDEADLK)
		return locked;
	int err = relay_head(buf, &pos, &second);
	if (!err) {
		uint64_t number = relay_pos_number(buf, pos);
		buf->control->caught_up = relay_produced(buf, pos);
		uint64_t asked = relay_asked(buf, number);
		if (asked & RELAY_ASKED_SUSPENDED)
			relay_say(buf, number, asked & ~RELAY_ASKED_SUSPENDED);
	}
	if (!locked)
		relay_switch_unlock(buf, &before);
	return err;
}
