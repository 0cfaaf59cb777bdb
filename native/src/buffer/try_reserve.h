/* SPDX-License-Identifier: MIT */
/* From head to the spot where a record may be stored: refusals, switches, the lock of scheme locking. */
#ifndef RELAYFS_BUFFER_TRY_RESERVE_H
#define RELAYFS_BUFFER_TRY_RESERVE_H

#include "buffer/change.h"

#include <signal.h>

enum relay_spot {
	RELAY_SPOT_HERE,  /* the record fits where head is */
	RELAY_SPOT_AGAIN, /* head moved: look again */
	RELAY_SPOT_ABORTED,
	/* from here on: refused */
	RELAY_SPOT_FULL,
	RELAY_SPOT_BUSY,      /* somebody else lets it begin, and has not done so */
	RELAY_SPOT_TOO_LARGE, /* for what the header leaves */
	RELAY_SPOT_IN_CALLBACK,
	RELAY_SPOT_DAMAGED
};

/* Where head may be changed from, after `seen`: switches if it must. In scheme locking, with the lock. */
enum relay_spot relay_find_spot(struct rchan_buf *buf, const struct relay_tx *seen, uint64_t length);

/* There is none: count the record as lost. As relay_write(), or RELAY_WRONG_CPU: then it was not counted. */
int relay_refuse_spot(struct rchan_buf *buf, enum relay_spot spot, uint64_t length);
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

/* No claim is to be had for a reservation. If holes have most of them, let those come free. */
void relay_switch_from_holes(struct rchan_buf *buf);

#endif
