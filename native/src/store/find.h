/* SPDX-License-Identifier: MIT */
/* Finding the mount and the store for a program that names neither of them. find.c also has relay_find_mount(),
 * relay_find_store() and relay_default_store(), which <relayfs/store.h> declares. */
#ifndef RELAYFS_STORE_FIND_H
#define RELAYFS_STORE_FIND_H

#include <relayfs/store.h>
#include <stdbool.h>

/* Return the directory of a path that names none, to be freed: $RELAYFS, else the first mount whose control file this
 * process may write to, else the default store. NULL: no memory, or $RELAYFS_STORE is too long. */
char *relay_default_root(void);

/* Return the value of an environment variable. NULL: it is not set, or empty. */
const char *relay_named_by(const char *variable);

/* Call fits(mountpoint, arg) for each relayfs mount whose server is root's or this user's, until it returns true.
 * Mounts of other users' servers are left out, because such a server might never answer a request. only: a path; then
 * only mounts of the file system in which it lies; NULL: all. */
typedef bool relay_mount_fits(const char *mountpoint, void *arg);
void relay_each_mount(const char *only, relay_mount_fits *fits, void *arg);

/* True if a relayfs is mounted at `root` and access(2) allows `how` (F_OK, W_OK) for its control file. */
bool relay_has_control(const char *root, int how);

/* True if only this user can make, rename and remove files in the store's directory, or if the directory does not
 * exist, in which case this process will be its owner. */
bool relay_store_is_trusted(const char *store);

/* Make the store's directory unless it exists. 0 or -errno: -EACCES: it exists, and relay_store_is_trusted() is
 * false. */
int relay_store_make(const char *store);

/* Return the mountpoint of the server of a store, to be freed. NULL: no server runs, its mount is not visible to this
 * process, or no memory. */
char *relay_store_mountpoint(const char *store);

/* True if the default store is that of the mount $RELAYFS: $RELAYFS is not set, $RELAYFS_STORE is set, or the last
 * server of the store was mounted at $RELAYFS. Otherwise the store belongs to another mount. */
bool relay_default_store_is_meant(const char *store);

#endif
