/* SPDX-License-Identifier: MIT */
/* From a path in a mount to the files behind it. Knows the mount's names, no rings. */
#ifndef RELAYFS_MOUNTPOINT_H
#define RELAYFS_MOUNTPOINT_H

#include <stdint.h>

/* A path, cut in two: "MNT" and "app/cpu". */
struct relay_place {
	char *mount;
	char *channel;
	uint32_t cpu; /* of a relay file */
};

/* 0 or -errno: -ENOENT no relayfs there (or, for the latter two, no such channel or relay file). */
int relay_place_new(struct relay_place *place, const char *path);     /* a channel that may be made */
int relay_place_channel(struct relay_place *place, const char *path); /* "MNT/app/cpu" */
int relay_place_file(struct relay_place *place, const char *path);    /* "MNT/app/cpu0" */
void relay_place_free(struct relay_place *place);

char *relay_place_mem(const struct relay_place *place, uint32_t cpu); /* "MNT/.channels/app/cpu/mem0" */

/* Write one line to MNT/control. */
int relay_place_control(const struct relay_place *place, const char *command, const char *options);

#endif
