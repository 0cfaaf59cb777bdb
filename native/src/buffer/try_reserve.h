/* SPDX-License-Identifier: MIT */
/* Finding room for a record at a buffer's head: sub-buffer switches, refusals, and the lock of scheme locking. */
#ifndef RELAYFS_BUFFER_TRY_RESERVE_H
#define RELAYFS_BUFFER_TRY_RESERVE_H

#include "buffer/tx.h"

#include <signal.h>

enum relay_try {
	RELAY_TRY_HERE,  /* the record fits at head */
	RELAY_TRY_AGAIN, /* head has moved: load it again */
	RELAY_TRY_ABORTED,
	/* from here on: refused */
	RELAY_TRY_FULL,
	RELAY_TRY_BUSY,      /* another thread's subbuf_start has not returned yet */
	RELAY_TRY_TOO_LARGE, /* for a sub-buffer after its header */
	RELAY_TRY_IN_CALLBACK,
	RELAY_TRY_DAMAGED
};

/* Tell whether a record fits at `seen`, what relay_tx_load() saw of head; switch to the next sub-buffer if it does not. In scheme
 * locking the caller holds the lock. */
enum relay_try relay_buf_try_reserve(struct rchan_buf *buf, const struct relay_tx *seen, uint64_t length);

/* Count a record that was refused as lost. Returns what relay_write() returns for it, or RELAY_WRONG_CPU if it was not counted. */
int relay_buf_refuse(struct rchan_buf *buf, enum relay_try tried, uint64_t length);
int relay_refuse_full(struct rchan_buf *buf, size_t length);
int relay_refuse_too_large(struct rchan_buf *buf, size_t length);

/* Stopped: why? 0: it is not, any more. */
int relay_refuse_stopped(struct rchan_buf *buf, uint64_t length);

/* Scheme locking: one writer at a time; in the others this does nothing. 0, -EDEADLK: this thread has the lock, -EBUSY:
 * a living one has it for too long. */
int relay_writers_lock(struct rchan_buf *buf, sigset_t *before);
void relay_writers_unlock(struct rchan_buf *buf, const sigset_t *before);

/* Leave the sub-buffer, full or not. 0, an error, or RELAY_WRONG_CPU. */
int relay_switch(struct rchan_buf *buf);

/* No claim is to be had for a reservation. If holes have most of them, let those come free. locked: as in struct relay_slot. */
void relay_switch_from_holes(struct rchan_buf *buf, bool locked);

#endif
