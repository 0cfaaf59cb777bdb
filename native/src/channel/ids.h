/* SPDX-License-Identifier: MIT */
/* Channels of 2003 are known by numbers, and counted by who holds them. */
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
	uint64_t locked_by; /* owner word of who is between relay_lock_channel() and relay_unlock_channel() */
	sigset_t before;    /* relay_lock_channel() */
};

static inline struct relay_classic *relay_classic_of(const struct rchan *chan)
{
	return chan->private_data;
}

/* A number for a new channel, which relay_ids_publish() makes valid and relay_ids_drop() gives back. NULL: all are in
 * use. */
struct relay_classic *relay_ids_take(void);
void relay_ids_publish(struct relay_classic *classic);

/* Hold the channel of a valid number; NULL: it is not. Async-signal-safe. */
struct relay_classic *relay_ids_hold(int id);

/* Its number is valid no more; who holds it goes on. */
void relay_ids_withdraw(struct relay_classic *classic);

/* Let go; whoever is the last frees the channel. */
void relay_ids_drop(struct relay_classic *classic);

#endif
