/* SPDX-License-Identifier: MIT */
/* Which relayfs is meant where nobody has named one: its mount, and its store. The functions that tools use, too, are in
 * <relayfs/store.h>. */
#ifndef RELAYFS_STORE_FIND_H
#define RELAYFS_STORE_FIND_H

#include <relayfs/store.h>
#include <stdbool.h>

/* Where a path leads that names no directory: $RELAYFS, else the first mount in which this process may make
 * channels, else the default store. NULL: no memory. */
char *relay_default_root(void);

/* The value of an environment variable; NULL: it is not set, or empty. */
const char *relay_named_by(const char *variable);

/* Ask of each mount that is root's or this user's until one fits; with `only`, of those of the file system in which that path
 * lies. None of their servers is asked. */
typedef bool relay_mount_fits(const char *mountpoint, void *arg);
void relay_each_mount(const char *only, relay_mount_fits *fits, void *arg);

/* Is a relayfs mounted at `root`, and may its control be used so (F_OK, W_OK)? */
bool relay_has_control(const char *root, int how);

/* May nobody but this user move things in the store? One that is missing will be ours. */
bool relay_store_is_trusted(const char *store);

/* Make the store, if it is missing, for this user alone. 0 or -errno: -EACCES, it is not to be trusted. */
int relay_store_make(const char *store);

/* The mountpoint whose server holds this store, if it can be reached; NULL otherwise. */
char *relay_store_mountpoint(const char *store);

/* Is the default store that of the mount that $RELAYFS names? True if $RELAYFS names none, if $RELAYFS_STORE says so, or
 * if the store's last server was mounted there; otherwise what lies in the store belongs to another mount. */
bool relay_default_store_is_meant(const char *store);

#endif
