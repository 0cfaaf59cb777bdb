/* SPDX-License-Identifier: MIT */
/* Store files whose pages nobody can free: the immutable flag of their inodes. */
#ifndef RELAYFS_BASE_IMMUTABLE_H
#define RELAYFS_BASE_IMMUTABLE_H

/* As openat(2), also for writing to an immutable file: the flag is cleared while the file is opened. Returns a descriptor,
 * or -errno. */
int relay_file_openat(int dir_fd, const char *name, int flags);

/* As unlinkat(2) without flags, also of an immutable file. 0 or -errno. */
int relay_file_unlinkat(int dir_fd, const char *name);

#endif
