/* SPDX-License-Identifier: MIT */
/* Sub-buffers that begin when somebody says so, and the lock under which he is asked. buffer/subbuf_start.c tells how. */
#ifndef RELAYFS_BUFFER_SUBBUF_START_H
#define RELAYFS_BUFFER_SUBBUF_START_H

#include "base/clock.h"
#include "base/quiet.h"
#include "base/robust_lock.h"
#include "buffer/buffer.h"

#include <signal.h>

/* What has been said of sub-buffer `number`: RELAY_ASKED_ bits. */
static inline uint64_t relay_asked(const struct rchan_buf *buf, uint64_t number)
{
	/* Pairs with the release in relay_say(): what a callback stored before its answer. */
	uint64_t asked = __atomic_load_n(&buf->control->asked, __ATOMIC_ACQUIRE);
	return asked >> RELAY_ASKED_SHIFT == number + 1 ? asked & ((1u << RELAY_ASKED_SHIFT) - 1) : 0;
}

/* May records be stored where head is? If not, somebody has to be asked. */
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

/* Is what sub-buffer `number` held overwritten, or about to be? A number beyond head's is nonsense, and counts so. */
static inline bool relay_is_lapped(const struct rchan_buf *buf, uint64_t head, uint64_t number)
{
	uint64_t ahead = relay_pos_number(buf, head) - number;
	return ahead > buf->n_subbufs || (ahead == buf->n_subbufs && relay_has_spoiled(buf, head));
}

/* The oldest one that is not, once there have been n_subbufs of them. */
static inline uint64_t relay_oldest(const struct rchan_buf *buf, uint64_t head)
{
	return relay_pos_number(buf, head) - buf->n_subbufs + relay_has_spoiled(buf, head);
}

/* How many sub-buffers are finished: where there is a client, those that it has seen the end of. */
static inline uint64_t relay_produced(const struct rchan_buf *buf, uint64_t head)
{
	uint64_t number = relay_pos_number(buf, head);
	if (number == 0 || !buf->begins || relay_pos_offset(buf, head) > 0)
		return number;
	return relay_asked(buf, number) & (RELAY_ASKED_ENDED | RELAY_ASKED_YES) ? number : number - 1;
}

/* Has the reader left the sub-buffer that lies a lap before the one at pos? */
static inline bool relay_has_left(const struct rchan_buf *buf, uint64_t pos)
{
	/* Pairs with the release in relay_consumer_publish(): the reader's loads before our stores. */
	uint64_t consumed = __atomic_load_n(&buf->control->consumed, __ATOMIC_ACQUIRE);
	return relay_pos_number(buf, pos) - relay_pos_number(buf, consumed) < buf->n_subbufs;
}

/* Has the answer been no, and is there no need to ask again? */
static inline bool relay_is_settled(const struct rchan_buf *buf, uint64_t pos)
{
	uint64_t asked = relay_asked(buf, relay_pos_number(buf, pos));
	return asked & RELAY_ASKED_SUSPENDED ||
	       (buf->mode == RELAY_NO_OVERWRITE && asked & RELAY_ASKED_ENDED && !relay_has_left(buf, pos));
}

/* Have the data no memory yet? Those that several programs write always have, and none of them can say otherwise. */
static inline bool relay_is_unallocated(const struct rchan_buf *buf)
{
	if (!buf->pid)
		return false;
	/* Pairs with the release in relay_note_allocated(): the memory before the word that it is there. */
	return __atomic_load_n(&buf->control->flags, __ATOMIC_ACQUIRE) & RELAY_UNALLOCATED;
}

static inline void relay_note_allocated(struct rchan_buf *buf)
{
	/* Pairs with the acquire in relay_is_unallocated(). */
	__atomic_fetch_and(&buf->control->flags, ~(uint32_t)RELAY_UNALLOCATED, __ATOMIC_RELEASE);
}

/* Finish an empty sub-buffer of such a buffer, if records were lost: only packets say so, and those without records need no
 * memory. None begins behind it. 0, or as relay_switch_lock(). */
int relay_finish_unallocated(struct rchan_buf *buf);

/* Let the sub-buffer begin at whose start head is, unless somebody else has; *header: bytes reserved at its start. From
 * any CPU. Clients wait for each other, at most a second. */
enum relay_subbuf_start relay_subbuf_start(struct rchan_buf *buf, uint64_t *header);

/* How long this buffer's writers wait for its locks. */
static inline enum relay_blocking relay_blocking(const struct rchan_buf *buf)
{
	if (buf->never_waits)
		return relay_is_quiet() ? RELAY_QUIET : RELAY_NEVER_WAITS;
	return buf->may_block ? RELAY_MAY_BLOCK : RELAY_RETRIES_LATER;
}

/* The lock under which sub-buffers begin, with asynchronous signals blocked. 0, -EDEADLK: this thread has it,
 * -EBUSY: a living thread has it for longer than a moment, or, if buf->may_block, for longer than a second. */
int relay_switch_lock(struct rchan_buf *buf, sigset_t *before);
void relay_switch_unlock(struct rchan_buf *buf, const sigset_t *before);

/* For readers, who never take it: one that is stopped must not hold up producers. Wait until nobody is in there; what a dead
 * holder has spoiled is known then. 0; 1: a dead one still has it; or as relay_switch_lock(). */
int relay_switch_watch(struct rchan_buf *buf);

/* Ready-made relay_subbuf_start_functions: as the mode says; NULL: a client has to. */
relay_subbuf_start_function *relay_subbuf_start_of_mode(const struct rchan_buf *buf);

/* --- for relay_subbuf_start_functions, who have the lock --- */

/* Of sub-buffer `number`. Without the lock where sub-buffers begin at once; see buffer/try_reserve.c. */
void relay_say(struct rchan_buf *buf, uint64_t number, uint64_t bits);

/* A client is about to be given its memory, a death in which spoils what lies there. */
static inline void relay_note_start(struct rchan_buf *buf, uint64_t number)
{
	/* Relaxed: of a thread that was killed all stores are seen up to some point. */
	__atomic_store_n(&buf->control->starting, number + 1, __ATOMIC_RELAXED);
	/* Pairs with the acquire fence in relay_consume_valid(): whoever reads what the client stores sees the lock taken. */
	__atomic_thread_fence(__ATOMIC_RELEASE);
}

/* Bytes that are kept at its start. */
static inline uint64_t relay_reserved_at(const struct rchan_buf *buf, uint64_t number)
{
	return buf->start_reserve + (number == 0 ? (uint64_t)buf->channel_start_reserve : 0);
}

/* Note when it began, if the channel has timestamps; to be called before relay_enter(). */
struct relay_moment relay_stamp(struct rchan_buf *buf, uint64_t pos);

/* The sub-buffer at pos has begun, behind buf->header bytes. */
enum relay_subbuf_start relay_enter(struct rchan_buf *buf, uint64_t pos);

#endif
