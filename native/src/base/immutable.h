/* SPDX-License-Identifier: MIT */
/* Opening and unlinking store files whose inodes are immutable; base/immutable.c explains why they are. */
#ifndef RELAYFS_BASE_IMMUTABLE_H
#define RELAYFS_BASE_IMMUTABLE_H

/* As openat(2), but also opens an immutable file for writing, by clearing the flag for that moment. Returns a
 * descriptor, or -errno; -EPERM: the file is immutable, and this process may not clear the flag. */
int relay_file_openat(int dir_fd, const char *name, int flags);

/* As unlinkat(2) without flags, but also unlinks an immutable file. Returns 0 or -errno, as above. */
int relay_file_unlinkat(int dir_fd, const char *name);

#endif
