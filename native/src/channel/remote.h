/* SPDX-License-Identifier: MIT */
/*
 * A channel whose memory this process cannot map: the mount maps no files (before Linux 6.9, or a server without
 * CAP_SYS_ADMIN), and the store is another user's. Its records go through the relay files, one write(2) each.
 *
 * Such a channel has no buffers, chan->n_buffers is 0, and scheme rseq. So the fast paths need not ask: no CPU has a
 * buffer, and they come to the slow ones that are for threads without restartable sequences.
 */
#ifndef RELAYFS_CHANNEL_REMOTE_H
#define RELAYFS_CHANNEL_REMOTE_H

#include "channel/channel.h"

/* Open the relay files of chan->place. 0 or -errno; -EOPNOTSUPP: its subbuf_start would have to run in this process. */
int relay_remote_open(struct rchan *chan);
void relay_remote_close(struct relay_remote *remote);

/* As relay_write(), with the errors that write(2) has. */
int relay_remote_write(const struct relay_remote *remote, const void *data, size_t length);

/* As relay_reserve(), in private memory; commit writes it. -ENOMEM: too many are open. */
int relay_remote_reserve(struct relay_remote *remote, size_t length, void **to);
void relay_remote_commit(struct relay_remote *remote, void *reserved);
void relay_remote_discard(struct relay_remote *remote, void *reserved);

/* Is the channel gone whose files these are? */
bool relay_remote_is_removed(const struct relay_remote *remote);

#endif
