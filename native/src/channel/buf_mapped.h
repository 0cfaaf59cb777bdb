/* SPDX-License-Identifier: MIT */
/* Tell a channel's maker who maps its buffers. */
#ifndef RELAYFS_CHANNEL_BUF_MAPPED_H
#define RELAYFS_CHANNEL_BUF_MAPPED_H

#include "channel/channel.h"

/* Start a thread that calls buf_mapped and buf_unmapped, if there are such; end it. The channel has its files. */
int relay_buf_mapped_start(struct rchan *chan);
void relay_buf_mapped_stop(struct rchan *chan);

#endif
