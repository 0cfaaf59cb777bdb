/* SPDX-License-Identifier: MIT */
/*
 * From a path to the files behind it.
 *
 *     MNT/app/cpu            a mount: MNT/control, MNT/.channels/app/cpu/mem0
 *     $RELAYFS/app/cpu       the same; or, when nothing is mounted there, ...
 *     STORE/app/cpu          ... the default store itself: STORE/app/cpu/mem0
 *
 * A store that is served is only ever changed through its server, whose mount the store's lock names.
 */
#ifndef RELAYFS_STORE_PLACE_H
#define RELAYFS_STORE_PLACE_H

#include <stdbool.h>
#include <stdint.h>

/* A path, cut in two: "MNT" or "STORE", and "app/cpu". */
struct relay_place {
	char *root;
	bool in_store; /* root is a store that nobody serves */
	char *channel;
	uint32_t cpu; /* of a relay file */
};

/* 0 or -errno: -ENOENT no relayfs there (or, for the latter two, no such channel or relay file). */
int relay_place_new(struct relay_place *place, const char *path);     /* a channel that may be made */
int relay_place_channel(struct relay_place *place, const char *path); /* "MNT/app/cpu" */
int relay_place_file(struct relay_place *place, const char *path);    /* "MNT/app/cpu0" */
void relay_place_free(struct relay_place *place);

/* A place in a store that somebody serves by now becomes one in that mount. */
void relay_place_refresh(struct relay_place *place);

/* "MNT/.channels/app/cpu/mem0", "STORE/app/cpu/mem0"; NULL: no memory. */
char *relay_place_mem(const struct relay_place *place, uint32_t cpu);

/* In a store: is `path` below its root the name of a directory, a channel or a relay file? */
bool relay_place_is_taken(const struct relay_place *place, const char *path);

/* Write one line to MNT/control: COMMAND PATH WORDS. */
int relay_place_control(const struct relay_place *place, const char *command, const char *words);

#endif
