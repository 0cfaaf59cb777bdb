/* SPDX-License-Identifier: MIT */
/* Callbacks of a channel's maker when other processes map its buffers. */
#ifndef RELAYFS_CHANNEL_BUF_MAPPED_H
#define RELAYFS_CHANNEL_BUF_MAPPED_H

#include "channel/channel.h"

/* Start a thread that calls buf_mapped and buf_unmapped, if the channel has them; 0 or -errno. Stop it. The channel
 * must have files. */
int relay_buf_mapped_start(struct rchan *chan);
void relay_buf_mapped_stop(struct rchan *chan);

#endif
