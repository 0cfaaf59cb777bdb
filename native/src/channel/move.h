/* SPDX-License-Identifier: MIT */
/* Moving the memory of a channel without files into files of another user's server. */
#ifndef RELAYFS_CHANNEL_MOVE_H
#define RELAYFS_CHANNEL_MOVE_H

#include "channel/channel.h"
#include "channel/direct.h"

/*
 * Call operation->in_mount, which makes files at `place` with copies of the channel's memory, and map these at the addresses of
 * the old memory. Threads may be writing: they wait meanwhile.
 *
 * -EBUSY: a record is reserved and not committed, or another thread consumes or switches; -EOPNOTSUPP: reserve=visible,
 * where unfinished records are not known; -ENODEV: the mount cannot map files; or as the operation. Nothing has changed then.
 * Only if the kernel has no memory to map a file that it has just mapped elsewhere (-ENOMEM), the buffers before that
 * one are closed: they have the new memory already, and the new files are removed.
 */
int relay_chan_move(struct rchan *chan, const struct relay_place *place, const struct relay_operation *operation);

/* True if the server of this mount runs as another user: then programs get no descriptors of its store. */
bool relay_is_foreign(const struct relay_place *place);

#endif
