/* SPDX-License-Identifier: MIT */
/*
 * The steps under the switch lock when the sub-buffer at head, n + 1, is about to begin:
 *
 *     buffer_end      n gets its footer                      asked: ENDED; readers can leave n
 *     deliver         n, and those before it whose last reservation was still open
 *     buffers_full    if the old data in n + 1 has not been consumed
 *     buffer_start    n + 1 gets its header                  head moves behind it
 *
 * A process may be killed at any point; the next one repeats the step whose end was not stored. If a reservation is
 * committed after its sub-buffer has ended, the thread that commits delivers the sub-buffer, also under the lock.
 */
#define _GNU_SOURCE
#include "classic/callbacks.h"

#include "base/futex.h"
#include "buffer/claims.h"
#include "buffer/head.h"
#include "buffer/subbuf_start.h"
#include "buffer/write.h"

#include <string.h>

/* The clocks at one moment, as arguments of callbacks. */
struct told_moment {
	struct timeval time;
	uint64_t tsc;
	int using_tsc;
};

static struct told_moment tell(const struct rchan_buf *buf, struct relay_moment moment)
{
	bool using_tsc = buf->timestamp == RELAY_TSC;
	return (struct told_moment){
	    .time = relay_timeval(moment.time_ns), .tsc = using_tsc ? moment.clock : 0, .using_tsc = using_tsc};
}

/* Limit the number of bytes that a callback says it wrote to the reserved ones. */
static uint64_t written(int said, uint64_t room)
{
	return said <= 0 ? 0 : (uint64_t)said < room ? (uint64_t)said : room;
}

/* Store where the sub-buffer before `pos` ended, before its footer, so that another process finds it if this one dies. */
static uint64_t note_ending(struct rchan_buf *buf, uint64_t pos)
{
	struct relay_control *control = buf->control;
	uint64_t number = relay_pos_number(buf, pos);
	if (__atomic_load_n(&control->ending, __ATOMIC_ACQUIRE) != number) {
		uint64_t previous = relay_pos_start(buf, number - 1);
		control->ending_at = __atomic_load_n(&relay_pos_entry(buf, previous)->end, __ATOMIC_RELAXED);
		control->ending_bytes = __atomic_load_n(&relay_pos_entry(buf, pos)->start_bytes, __ATOMIC_RELAXED);
		/* Release: if this thread dies, the next holder of the lock finds both. */
		__atomic_store_n(&control->ending, number, __ATOMIC_RELEASE);
	}
	return control->ending_at;
}

/* 0 or -EBADMSG. */
static int end_previous(const struct relay_classic *classic, struct rchan_buf *buf, uint64_t pos)
{
	uint64_t number = relay_pos_number(buf, pos), asked = relay_asked(buf, number);
	if (number == 0 || asked & RELAY_ASKED_ENDED)
		return 0;
	uint64_t end = note_ending(buf, pos);
	if (!relay_pos_valid(buf, end) || relay_pos_number(buf, end) != number - 1)
		return -EBADMSG;
	uint64_t room = buf->subbuf_size - relay_pos_offset(buf, end), footer = 0;
	char *at = (char *)relay_pos_data(buf, end);
	if (classic->cb->buffer_end) {
		struct told_moment now = tell(buf, relay_clock_moment(buf->timestamp));
		footer = written(classic->cb->buffer_end(classic->id, at, at + room, now.time, now.tsc, now.using_tsc),
		                 room);
	}
	/* Relaxed: published by later stores. */
	__atomic_store_n(&relay_pos_entry(buf, end)->end, end + footer, __ATOMIC_RELAXED);
	__atomic_store_n(&relay_pos_entry(buf, pos)->start_bytes, buf->control->ending_bytes + footer,
	                 __ATOMIC_RELAXED);
	relay_say(buf, number, asked | RELAY_ASKED_ENDED);
	return 0;
}

/* Deliver finished sub-buffers whose reservations are all committed, in order. */
static void deliver(const struct relay_classic *classic, struct rchan_buf *buf)
{
	uint64_t head, second, *delivered = &buf->control->delivered;
	for (;;) {
		if (relay_head(buf, &head, &second))
			return;
		uint64_t number = *delivered, produced = relay_produced(buf, head),
			 start = relay_pos_start(buf, number);
		if (number >= produced)
			return;
		if (!relay_is_lapped(buf, head, number)) {
			/* A writer that commits behind the fence sees that head has moved on, and delivers. */
			if (relay_claims_fill(buf, start) && !(relay_fence_writers() && !relay_claims_fill(buf, start)))
				return;
			uint64_t end = __atomic_load_n(&relay_pos_entry(buf, start)->end, __ATOMIC_RELAXED);
			if (relay_pos_valid(buf, end) && relay_pos_number(buf, end) == number)
				classic->cb->deliver(classic->id, (char *)relay_pos_data(buf, start),
				                     (uint32_t)relay_pos_offset(buf, end));
			*delivered = number + 1;
		} else {
			*delivered = relay_oldest(buf, head);
		}
	}
}

static bool delivers_in_bulk(const struct relay_classic *classic)
{
	return classic->flags & RELAY_DELIVERY_BULK && classic->cb->deliver;
}

uint64_t relay_bufs_consumed(const struct rchan_buf *buf)
{
	uint64_t consumed = __atomic_load_n(&buf->control->consumed, __ATOMIC_ACQUIRE), head, second;
	uint64_t number = relay_pos_number(buf, consumed), caught_up = buf->control->caught_up;
	/* The reader's position may be the sub-buffer's end, because the reader got there before the end was stored. It
	 * moves to the next sub-buffer only at its next read. */
	if (relay_pos_valid(buf, consumed) && !relay_head(buf, &head, &second) && number < relay_produced(buf, head) &&
	    consumed == __atomic_load_n(&relay_pos_entry(buf, consumed)->end, __ATOMIC_RELAXED))
		number++;
	return number > caught_up ? number : caught_up;
}

static enum relay_subbuf_start start(const struct relay_classic *classic, struct rchan_buf *buf, uint64_t pos)
{
	uint64_t number = relay_pos_number(buf, pos), header = 0;
	buf->header = relay_reserved_at(buf, number);
	struct told_moment now = tell(buf, relay_stamp(buf, pos));
	char *at = (char *)relay_pos_data(buf, pos);
	relay_note_start(buf, number);
	if (classic->cb->buffer_start)
		header = written(
		    classic->cb->buffer_start(classic->id, at, (uint32_t)number, now.time, now.tsc, now.using_tsc),
		    buf->header);
	memset(at + header, 0, buf->header - header);
	return relay_enter(buf, pos);
}

enum relay_subbuf_start relay_subbuf_start_by_callback(struct rchan_buf *buf, uint64_t pos)
{
	const struct relay_classic *classic = relay_classic_of(buf->chan);
	uint64_t number = relay_pos_number(buf, pos);
	if (end_previous(classic, buf, pos))
		return RELAY_SUBBUF_START_DAMAGED;
	/* If a reservation of the previous lap is still open there, the sub-buffer cannot begin yet; otherwise
	 * deliver() can deliver the previous lap's data before it is overwritten. */
	bool held = relay_claims_hold(buf, pos);
	if (delivers_in_bulk(classic))
		deliver(classic, buf);
	/* Relaxed: the thread that finalizes the channel takes the lock afterwards. */
	if (held || __atomic_load_n(&buf->control->flags, __ATOMIC_RELAXED) & (RELAY_FINALIZED | RELAY_CLOSED))
		return RELAY_NOT_YET;
	if (number - relay_bufs_consumed(buf) >= buf->n_subbufs && classic->cb->buffers_full &&
	    classic->cb->buffers_full(classic->id)) {
		relay_say(buf, number, relay_asked(buf, number) | RELAY_ASKED_SUSPENDED);
		return RELAY_NOT_YET;
	}
	return start(classic, buf, pos);
}

void relay_events_committed(const struct relay_classic *classic, uint64_t pos, size_t length)
{
	struct rchan_buf *buf = &classic->chan->bufs[0];
	sigset_t before;
	if (!classic->cb->deliver)
		return;
	if (classic->flags & RELAY_DELIVERY_PACKET) {
		classic->cb->deliver(classic->id, (char *)relay_pos_data(buf, pos), (uint32_t)length);
		return;
	}
	if (!classic->fenced)
		__atomic_thread_fence(__ATOMIC_SEQ_CST);
	/* If this thread has the lock, it is in a callback, after which finished sub-buffers are delivered. */
	if (__builtin_expect(relay_has_moved_on(buf, pos), 0) && !relay_switch_lock(buf, &before)) {
		deliver(classic, buf);
		relay_switch_unlock(buf, &before);
	}
}
