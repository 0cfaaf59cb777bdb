/* SPDX-License-Identifier: MIT */
/* Moving the memory of a channel without files into files of a server that belongs to another user. */
#ifndef RELAYFS_CHANNEL_MOVE_H
#define RELAYFS_CHANNEL_MOVE_H

#include "channel/channel.h"
#include "channel/direct.h"

/*
 * Let step->in_mount make files at `place` that are copies of the channel's memory, and map these over the old memory:
 * addresses stay. Threads may be writing: they wait meanwhile.
 *
 * -EBUSY: a record is reserved and not committed, or another thread consumes or switches; -EOPNOTSUPP: reserve=visible,
 * where nobody knows who still fills a record; -ENODEV: the mount maps no files; or as the step. Nothing has changed then.
 */
int relay_chan_move(struct rchan *chan, const struct relay_place *place, const struct relay_step *step);

/* Does the server of this mount run as another user? Then programs get no descriptors of its store. */
bool relay_is_foreign(const struct relay_place *place);

#endif
