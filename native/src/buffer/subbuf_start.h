/* SPDX-License-Identifier: MIT */
/* Sub-buffers that do not begin with the switch that enters them, but by a decision under the switch lock
 * (rchan_buf.begins). buffer/subbuf_start.c describes how they begin. Also how many sub-buffers are finished,
 * overwritten, or left by the reader. */
#ifndef RELAYFS_BUFFER_SUBBUF_START_H
#define RELAYFS_BUFFER_SUBBUF_START_H

#include "base/clock.h"
#include "base/quiet.h"
#include "base/robust_lock.h"
#include "buffer/buffer.h"

#include <signal.h>

/* The RELAY_ASKED_ bits of sub-buffer `number`; 0 if relay_control.asked is about another one. */
static inline uint64_t relay_asked(const struct rchan_buf *buf, uint64_t number)
{
	/* Pairs with the release in relay_say(): what a callback stored before it returned. */
	uint64_t asked = __atomic_load_n(&buf->control->asked, __ATOMIC_ACQUIRE);
	return asked >> RELAY_ASKED_SHIFT == number + 1 ? asked & ((1u << RELAY_ASKED_SHIFT) - 1) : 0;
}

/* True if records may be stored at head. If not, relay_subbuf_start() has to be called first. */
static inline bool relay_has_begun(const struct rchan_buf *buf, uint64_t head)
{
	return !buf->begins || relay_pos_offset(buf, head) > 0 ||
	       relay_asked(buf, relay_pos_number(buf, head)) & RELAY_ASKED_YES;
}

/* True if the data of the previous lap in the sub-buffer at `head` has been overwritten, or may have been. */
static inline bool relay_has_spoiled(const struct rchan_buf *buf, uint64_t head)
{
	return relay_has_begun(buf, head) || relay_asked(buf, relay_pos_number(buf, head)) & RELAY_ASKED_SPOILED;
}

/* True if the data of sub-buffer `number` has been overwritten or may be at any time. Also true for a number
 * beyond head's, which is damage. */
static inline bool relay_is_lapped(const struct rchan_buf *buf, uint64_t head, uint64_t number)
{
	uint64_t ahead = relay_pos_number(buf, head) - number;
	return ahead > buf->n_subbufs || (ahead == buf->n_subbufs && relay_has_spoiled(buf, head));
}

/* The number of the oldest sub-buffer that is not overwritten; only for a head in sub-buffer n_subbufs or later. */
static inline uint64_t relay_oldest(const struct rchan_buf *buf, uint64_t head)
{
	return relay_pos_number(buf, head) - buf->n_subbufs + relay_has_spoiled(buf, head);
}

/* The number of finished sub-buffers. If sub-buffers begin by `begin`, the last one before head is finished only
 * when `begin` has been called for the next. */
static inline uint64_t relay_produced(const struct rchan_buf *buf, uint64_t head)
{
	uint64_t number = relay_pos_number(buf, head);
	if (number == 0 || !buf->begins || relay_pos_offset(buf, head) > 0)
		return number;
	return relay_asked(buf, number) & (RELAY_ASKED_ENDED | RELAY_ASKED_YES) ? number : number - 1;
}

/* True if the reader has left the sub-buffer that lies one lap before pos's. */
static inline bool relay_has_left(const struct rchan_buf *buf, uint64_t pos)
{
	/* Pairs with the release in relay_consumer_publish(): the reader's loads of the data before
	 * this thread's stores to it. */
	uint64_t consumed = __atomic_load_n(&buf->control->consumed, __ATOMIC_ACQUIRE);
	return relay_pos_number(buf, pos) - relay_pos_number(buf, consumed) < buf->n_subbufs;
}

/* True if the sub-buffer at pos could not begin when it was tried last, and trying again is useless now. */
static inline bool relay_is_settled(const struct rchan_buf *buf, uint64_t pos)
{
	uint64_t asked = relay_asked(buf, relay_pos_number(buf, pos));
	return asked & RELAY_ASKED_SUSPENDED ||
	       (buf->mode == RELAY_NO_OVERWRITE && asked & RELAY_ASKED_ENDED && !relay_has_left(buf, pos));
}

/* True if the data have no memory yet. Only buffers that one process writes (pid) can have none; the flag is ignored
 * in others, because each of their writers could set it. */
static inline bool relay_is_unallocated(const struct rchan_buf *buf)
{
	if (!buf->pid)
		return false;
	/* Pairs with the release in relay_note_allocated(): the memory was allocated before. */
	return __atomic_load_n(&buf->control->flags, __ATOMIC_ACQUIRE) & RELAY_UNALLOCATED;
}

static inline void relay_note_allocated(struct rchan_buf *buf)
{
	/* Pairs with the acquire in relay_is_unallocated(). */
	__atomic_fetch_and(&buf->control->flags, ~(uint32_t)RELAY_UNALLOCATED, __ATOMIC_RELEASE);
}

/* Note in buffer 0 that its process ends its part of the trace in order. */
static inline void relay_note_left(struct rchan_buf *buf)
{
	/* Pairs with the acquire in relay_buf_has_left(). */
	__atomic_fetch_or(&buf->control->flags, RELAY_LEFT, __ATOMIC_RELEASE);
}

/* Finish the empty sub-buffer at head of a buffer without memory, if records were lost, so that its packet
 * reports the loss. An empty packet needs no memory. The next sub-buffer does not begin. Returns 0, -EBADMSG,
 * or as relay_switch_lock(). */
int relay_finish_unallocated(struct rchan_buf *buf);

/* Let the sub-buffer at head begin, unless it has begun already; *header receives the number of bytes reserved at
 * its start, if this call has begun it, else 0. Any thread on any CPU may call it. relay_blocking() limits how long it
 * waits for other threads. */
enum relay_subbuf_start relay_subbuf_start(struct rchan_buf *buf, uint64_t *header);

/* How long threads wait for this buffer's locks. */
static inline enum relay_blocking relay_blocking(const struct rchan_buf *buf)
{
	if (buf->never_waits)
		return relay_is_quiet() ? RELAY_QUIET : RELAY_NEVER_WAITS;
	return buf->may_block ? RELAY_MAY_BLOCK : RELAY_RETRIES_LATER;
}

/* Take the switch lock, with which sub-buffers begin, and block asynchronous signals. Returns 0; -EDEADLK: this
 * thread has it; -EBUSY: a living thread has kept it for longer than relay_blocking() permits. */
int relay_switch_lock(struct rchan_buf *buf, sigset_t *before);
void relay_switch_unlock(struct rchan_buf *buf, const sigset_t *before);

/* Wait until no thread has the switch lock. Readers call this instead of taking it, because a reader that is stopped
 * with the lock would delay producers. Afterwards it is known whether a dead holder may have overwritten old data
 * (RELAY_ASKED_SPOILED). Returns 0; 1: a dead thread still has the lock; or an error as relay_switch_lock(). */
int relay_switch_watch(struct rchan_buf *buf);

/* The `begin` function for the buffer's mode; NULL in mode callback, where a client decides. */
relay_subbuf_start_function *relay_subbuf_start_of_mode(const struct rchan_buf *buf);

/* --- for relay_subbuf_start_functions, which have the switch lock --- */

/* Set relay_control.asked to `number` and these RELAY_ASKED_ bits. Buffers whose sub-buffers begin at once call it
 * without the lock; see buffer/try_reserve.c. */
void relay_say(struct rchan_buf *buf, uint64_t number, uint64_t bits);

/* Note that a client's callback may now store in the memory of sub-buffer `number`, so that the old data there count
 * as overwritten if the process dies in it. */
static inline void relay_note_start(struct rchan_buf *buf, uint64_t number)
{
	/* Relaxed: if the thread is killed afterwards, all of its stores up to some point are seen. */
	__atomic_store_n(&buf->control->starting, number + 1, __ATOMIC_RELAXED);
	/* Pairs with the acquire fence in relay_consume_valid(): a reader that sees what the callback stores
	 * sees that the lock is taken. */
	__atomic_thread_fence(__ATOMIC_RELEASE);
}

/* Bytes reserved at the start of sub-buffer `number`. */
static inline uint64_t relay_reserved_at(const struct rchan_buf *buf, uint64_t number)
{
	return buf->start_reserve + (number == 0 ? (uint64_t)buf->channel_start_reserve : 0);
}

/* Store in the entry of pos's sub-buffer the present time (zeros in a buffer without timestamps) and, in a format with
 * packets or with `times`, the number of records refused so far. Call it before relay_enter(). Returns the time, or zeros. */
struct relay_moment relay_stamp(struct rchan_buf *buf, uint64_t pos);

/* Publish that the sub-buffer at pos has begun, with buf->header bytes reserved. Returns RELAY_BEGUN or
 * RELAY_SUBBUF_START_DAMAGED. */
enum relay_subbuf_start relay_enter(struct rchan_buf *buf, uint64_t pos);

#endif
