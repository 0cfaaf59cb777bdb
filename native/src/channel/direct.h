/* SPDX-License-Identifier: MIT */
/* Channels in a store that no server holds: what a server would do, done by the library. */
#ifndef RELAYFS_CHANNEL_DIRECT_H
#define RELAYFS_CHANNEL_DIRECT_H

#include "store/place.h"

#include <relayfs/ring_store.h>
#include <stddef.h>

/*
 * Make the channel of a place in the store, and the store and the directories above it; or make it of buffers
 * without names. 0 or -errno: as relay_store_create(); -EINVAL, -ENAMETOOLONG no server could show such a path;
 * -EEXIST, -ENOTDIR names are taken; -EBUSY somebody else holds the store: look again who.
 */
int relay_direct_create(const struct relay_place *place, const struct relay_spec *spec);
int relay_direct_create_rings(const struct relay_place *place, const struct relay_ring_spec *spec);
int relay_direct_adopt(const struct relay_place *place, const struct relay_spec *spec, const int *fds);

/* Stop its buffers and take it away, with the implicit directories that it leaves empty. -EBUSY as above; -ENOENT there is none. */
int relay_direct_remove(const struct relay_place *place);

/* Something that is done to the channel of a path, in a mount or in the store. */
struct relay_step {
	int (*in_mount)(const struct relay_place *place, const void *arg);
	int (*in_store)(const struct relay_place *place, const void *arg);
	const void *arg;
};

/* A store that nobody serves may be served a moment later: look again where it is. Waits while it is busy. */
int relay_carry_out(struct relay_place *place, const struct relay_step *step);

/* Buffers without names, where they can get one in the default store later. */
int relay_direct_create_unnamed(const struct relay_spec *spec, int *fds);

#endif
