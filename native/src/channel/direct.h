/* SPDX-License-Identifier: MIT */
/* Making and removing channels in a store that no server serves. */
#ifndef RELAYFS_CHANNEL_DIRECT_H
#define RELAYFS_CHANNEL_DIRECT_H

#include "store/place.h"

#include <relayfs/ring_store.h>
#include <stddef.h>

/*
 * Make a channel in the store, and the store and the directories above it; or make it of unnamed buffers.
 * 0 or -errno: as relay_store_create(); -EINVAL, -ENAMETOOLONG a server could not show this path;
 * -EEXIST, -ENOTDIR a name is taken; -EBUSY another process has the store's lock: call relay_place_refresh() and try again.
 */
int relay_direct_create(const struct relay_place *place, const struct relay_spec *spec);
int relay_direct_create_rings(const struct relay_place *place, const struct relay_ring_spec *spec);
int relay_direct_adopt(const struct relay_place *place, const struct relay_spec *spec, const int *fds);

/* Close a channel's buffers and remove it, with the implicit directories that become empty. -EBUSY as above; -ENOENT. */
int relay_direct_remove(const struct relay_place *place);

/* An operation on a channel, for a channel in a mount and for one in a store without a server. */
struct relay_operation {
	int (*in_mount)(const struct relay_place *place, const void *arg);
	int (*in_store)(const struct relay_place *place, const void *arg);
	const void *arg;
};

/* Call in_mount or in_store, whichever fits the place. If in_store returns -EBUSY, because the store is locked, try
 * again for about five seconds; a server may have started, so the place is refreshed each time. */
int relay_carry_out(struct relay_place *place, const struct relay_operation *operation);

/* Make unnamed buffers in a file system where they can get names in the default store later. */
int relay_direct_create_unnamed(const struct relay_spec *spec, int *fds);

#endif
