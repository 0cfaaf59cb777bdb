/* SPDX-License-Identifier: MIT */
/*
 * Finding a channel by the path that a program gives.
 *
 *     MNT/app/cpu            in a mount, with the files MNT/control and MNT/.channels/app/cpu/mem0
 *     $RELAYFS/app/cpu       the same, or, if nothing is mounted at $RELAYFS, in the default store
 *     STORE/app/cpu          in the default store, with the file STORE/app/cpu/mem0
 *
 * Programs make and remove channels in a store directly only while no server serves it. If one does, a path in the
 * store leads to the server's mount (relay_store_mountpoint()).
 */
#ifndef RELAYFS_STORE_PLACE_H
#define RELAYFS_STORE_PLACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Check a name of components with slashes between. 0, -EINVAL or -ENAMETOOLONG. */
int relay_check_name(const char *name, size_t max_bytes, size_t max_component_bytes);

/* A path in two parts. */
struct relay_place {
	char *root;    /* "MNT" or "STORE" */
	bool in_store; /* root is a store that no server serves */
	char *channel; /* "app/cpu" */
	uint32_t cpu;  /* the number of the buffer, if the path is that of a relay file; else 0 */
};

/*
 * Find the place of a path, to be freed by relay_place_free(). The path is
 *
 *     relay_place_new        that of a channel, which may not exist yet
 *     relay_place_channel    that of a channel, "MNT/app/cpu"
 *     relay_place_file       that of a relay file, "MNT/app/cpu0", or, with buffers=single, "MNT/app/cpu"
 *
 * 0 or -errno: -ENOENT: the path leads to no mount and not to the default store, or the channel or relay file does not
 * exist; -EISDIR: it is a directory in a mount; -EINVAL: it is empty or ends in a slash; -EACCES: another user can
 * change the default store.
 */
int relay_place_new(struct relay_place *place, const char *path);
int relay_place_channel(struct relay_place *place, const char *path);
int relay_place_file(struct relay_place *place, const char *path);
void relay_place_free(struct relay_place *place);

/* If a server has been started for the store of a place since it was found, change the place to one in its mount. */
void relay_place_refresh(struct relay_place *place);

/* Return the path of a memory file, "MNT/.channels/app/cpu/mem0" or "STORE/app/cpu/mem0", to be freed. NULL: no
 * memory. */
char *relay_place_mem(const struct relay_place *place, uint32_t cpu);

/* True if, in the store of this place, the path "STORE/`path`" is that of a directory, a channel or a relay file. */
bool relay_place_is_taken(const struct relay_place *place, const char *path);

/* Write the line "COMMAND CHANNEL WORDS" to MNT/control, for the channel of this place. 0 or -errno, as write(2):
 * -EINVAL also if the channel's path contains a blank, newline, quote or backslash, or `words` a newline. */
int relay_place_control(const struct relay_place *place, const char *command, const char *words);

#endif
