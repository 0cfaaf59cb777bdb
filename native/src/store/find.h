/* SPDX-License-Identifier: MIT */
/*
 * From a path to the files behind it. Knows names, no rings.
 *
 *     MNT/app/cpu            a mount: MNT/control, MNT/.channels/app/cpu/mem0
 *     $RELAYFS/app/cpu       the same; or, when nothing is mounted there, ...
 *     STORE/app/cpu          ... the default store itself: STORE/app/cpu/mem0
 *
 * A store that is served is only ever changed through its server, whose mount the store's lock names.
 */
#ifndef RELAYFS_STORE_FIND_H
#define RELAYFS_STORE_FIND_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

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

/* Where a path leads that names no directory: $RELAYFS, else the first mount in which this process may make
 * channels, else the default store. NULL: no memory. */
char *relay_default_root(void);

/* $RELAYFS_STORE, else where a server of this user has it. NULL: no memory. */
char *relay_default_store(void);

/* Ask of each relayfs mount that this process sees, until one fits. None of their servers is asked. */
typedef bool relay_mount_fits(const char *mountpoint, dev_t device, void *arg);
void relay_each_mount(relay_mount_fits *fits, void *arg);

/* May nobody but this user move things in the store? One that is missing will be ours. */
bool relay_store_is_trusted(const char *store);

/* The mountpoint whose server holds this store, if it can be reached; NULL otherwise. */
char *relay_store_mountpoint(const char *store);

/* Is the default store that of the mount that $RELAYFS names? True if $RELAYFS names none, if $RELAYFS_STORE says so, or
 * if the store's last server was mounted there; otherwise what lies in the store belongs to another mount. */
bool relay_default_store_is_meant(const char *store);

#endif
