/* SPDX-License-Identifier: MIT */
/*
 * A channel whose memory this process cannot map, because the mount cannot map files (before Linux 6.9, or a server without
 * CAP_SYS_ADMIN) and the store belongs to another user. Its records go through the relay files, one write(2) each.
 *
 * Such a channel has no buffers (chan->n_buffers is 0) and scheme rseq. So the fast paths need no further test: they find no
 * buffer for the CPU, and call the slow paths for threads without restartable sequences.
 */
#ifndef RELAYFS_CHANNEL_REMOTE_H
#define RELAYFS_CHANNEL_REMOTE_H

#include "channel/channel.h"

/* Open the relay files of chan->place. 0 or -errno; -EOPNOTSUPP: mode=callback, and this process has a subbuf_start,
 * which could not be called. */
int relay_remote_open(struct rchan *chan);
void relay_remote_close(struct relay_remote *remote);

/* As relay_write(), with the errors that write(2) has. */
int relay_remote_write(const struct relay_remote *remote, const void *data, size_t length);

/* The bytes of the longest record that the channel and write(2) take. */
size_t relay_remote_largest(const struct relay_remote *remote);

/* As relay_reserve(), in private memory, which commit writes. -ENOMEM: too many reservations are open. */
int relay_remote_reserve(struct relay_remote *remote, size_t length, void **to);
void relay_remote_commit(struct relay_remote *remote, void *reserved);
void relay_remote_discard(struct relay_remote *remote, void *reserved);

/* True if the channel of these files was removed. */
bool relay_remote_is_removed(const struct relay_remote *remote);

#endif
