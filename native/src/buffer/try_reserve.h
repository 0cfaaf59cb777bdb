/* SPDX-License-Identifier: MIT */
/* Finding room for a record at a buffer's head: switching sub-buffers, refusing records, and
 * the lock of scheme locking. */
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

/* Find out whether a record of `length` bytes fits at head; if not, switch to the next sub-buffer. seen: head as
 * relay_tx_load() has loaded it. In scheme locking the caller has the lock. */
enum relay_try relay_buf_try_reserve(struct rchan_buf *buf, const struct relay_tx *seen, uint64_t length);

/* Count a refused record as lost; relay_buf_refuse() does so for the reason `tried`. Returns the error of
 * relay_write(). The record was not counted if it is RELAY_WRONG_CPU, -ENOTSUP, -EBUSY (in a file server), -EDEADLK or
 * -EBADMSG. */
int relay_buf_refuse(struct rchan_buf *buf, enum relay_try tried, uint64_t length);
int relay_refuse_full(struct rchan_buf *buf, size_t length);
int relay_refuse_too_large(struct rchan_buf *buf, size_t length);

/* Refuse a record if the buffer is stopped (RELAY_STOPPED). Returns 0: it is not; -EPIPE: the channel was removed;
 * -ECANCELED: the buffer is disabled or being reset, and the record was counted as lost; or as relay_refuse(). */
int relay_refuse_stopped(struct rchan_buf *buf, uint64_t length);

/* Take the lock of scheme locking; in other schemes they do nothing. Returns 0; -EDEADLK: this thread has the lock;
 * -EBUSY: a living thread has kept it for longer than relay_blocking() permits. */
int relay_writers_lock(struct rchan_buf *buf, sigset_t *before);
void relay_writers_unlock(struct rchan_buf *buf, const sigset_t *before);

/* Finish the sub-buffer at head, full or not. Returns 0, also if there is nothing to finish or the next one may not
 * begin; RELAY_WRONG_CPU; -ENOTSUP; -EDEADLK: called in a callback; -EBUSY; -EBADMSG. */
int relay_switch(struct rchan_buf *buf);

/* Called if a reservation has found no free claim: if holes have most of the claims, finish a sub-buffer, so that
 * readers or writers can free them. locked: the caller has the lock of scheme locking. */
void relay_switch_from_holes(struct rchan_buf *buf, bool locked);

#endif
