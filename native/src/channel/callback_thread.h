/* SPDX-License-Identifier: MIT */
/* A thread in the process that made a channel, which calls the channel's callbacks for other processes. */
#ifndef RELAYFS_CHANNEL_CALLBACK_THREAD_H
#define RELAYFS_CHANNEL_CALLBACK_THREAD_H

#include "channel/channel.h"

/* Start a thread that calls step(chan) at once, after each relay_wake_maker() and at least once a second, with all
 * signals blocked; 0 or -errno. Stop it. */
int relay_callback_thread_start(struct rchan *chan, void (*step)(struct rchan *chan));
void relay_callback_thread_stop(struct rchan *chan);

#endif
