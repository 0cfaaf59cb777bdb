/* SPDX-License-Identifier: MIT */
/* Sub-buffers that begin when a client says so: subbuf_start and its lock. begin.c tells how. */
#ifndef RELAYFS_BEGIN_H
#define RELAYFS_BEGIN_H

#include "buf.h"

#include <signal.h>

/* What has been said of sub-buffer `number`: RELAY_ASKED_ bits; -1: nothing yet. */
static inline int relay_asked(const struct rchan_buf *buf, uint64_t number)
{
	/* Pairs with the release in begin.c: what the callback stored before its answer. */
	uint64_t asked = __atomic_load_n(&buf->control->asked, __ATOMIC_ACQUIRE);
	return asked >> RELAY_ASKED_SHIFT == number + 1 ? (int)(asked & (RELAY_ASKED_YES | RELAY_ASKED_SPOILED)) : -1;
}

/* May records be stored where head is? If not, subbuf_start has to be asked. */
static inline bool relay_has_begun(const struct rchan_buf *buf, uint64_t head)
{
	if (buf->mode != RELAY_CALLBACK || relay_pos_offset(buf, head) > 0)
		return true;
	int asked = relay_asked(buf, relay_pos_number(buf, head));
	return asked > 0 && asked & RELAY_ASKED_YES;
}

/* Is what lay there a lap before still intact? */
static inline bool relay_has_spoiled(const struct rchan_buf *buf, uint64_t head)
{
	return relay_has_begun(buf, head) || relay_asked(buf, relay_pos_number(buf, head)) > 0;
}

/* How many sub-buffers are finished: with a callback, those that it has seen. */
static inline uint64_t relay_produced(const struct rchan_buf *buf, uint64_t head)
{
	uint64_t number = relay_pos_number(buf, head);
	if (number == 0 || buf->mode != RELAY_CALLBACK || relay_pos_offset(buf, head) > 0)
		return number;
	return relay_asked(buf, number) < 0 ? number - 1 : number;
}

enum relay_begin {
	RELAY_BEGUN,
	RELAY_NOT_YET,     /* the client said so, or there is none in this process */
	RELAY_IN_CALLBACK, /* of this very thread */
	RELAY_BEGIN_DAMAGED
};

/* Let subbuf_start begin the sub-buffer at whose start head is, unless somebody else has; *header: bytes that it
 * reserved, or 0. From any CPU. A process with callbacks waits for those of others, at most a second. */
enum relay_begin relay_begin(struct rchan_buf *buf, uint64_t *header);

/* The lock under which callbacks run, with asynchronous signals blocked. 0, -EDEADLK: this thread has it,
 * -EBUSY: a living thread has it for longer than a moment, or, for the patient, a second. */
int relay_switch_lock(struct rchan_buf *buf, sigset_t *before);
void relay_switch_unlock(struct rchan_buf *buf, const sigset_t *before);

#endif
