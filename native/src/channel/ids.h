/* SPDX-License-Identifier: MIT */
/* The table of channel ids of <relayfs/classic.h>, with reference counts. */
#ifndef RELAYFS_CHANNEL_IDS_H
#define RELAYFS_CHANNEL_IDS_H

#define RELAYFS_CLASSIC_LONG_NAMES
#include "channel/channel.h"

#include <relayfs/classic.h>
#include <signal.h>

/* A channel that relay_classic_open() has made; its struct rchan's private data. */
struct relay_classic {
	uint64_t holders; /* channel/ids.c */
	int id;
	struct rchan *chan;
	const struct relay_classic_callbacks *cb;
	uint32_t flags; /* of the scheme and clock that were chosen */
	bool fenced;    /* relay_fence_writers() works here */
	bool closing;
	uint64_t locked_by; /* owner word of the thread between relay_lock_channel() and relay_unlock_channel() */
	sigset_t before;    /* the signal mask from before relay_lock_channel() */
};

static inline struct relay_classic *relay_classic_of(const struct rchan *chan)
{
	return chan->private_data;
}

/* Allocate an id for a new channel, with one reference. relay_ids_publish() makes the id valid, relay_ids_drop() frees it.
 * NULL: all ids are in use. */
struct relay_classic *relay_ids_take(void);
void relay_ids_publish(struct relay_classic *classic);

/* Get a reference to the channel of an id; NULL: the id is not valid. Async-signal-safe. */
struct relay_classic *relay_ids_hold(int id);

/* Make the id invalid; existing references stay valid. */
void relay_ids_withdraw(struct relay_classic *classic);

/* Drop a reference; the last one frees the channel. */
void relay_ids_drop(struct relay_classic *classic);

#endif
