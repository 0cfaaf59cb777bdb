/* SPDX-License-Identifier: MIT */
/* Making, opening and mapping store files, the files of buffers and rings on tmpfs. base/mapping.c describes how a
 * process survives the truncation of a file that it has mapped. */
#ifndef RELAYFS_BASE_MAPPING_H
#define RELAYFS_BASE_MAPPING_H

#include "base/descriptor.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct relay_mapping {
	unsigned char *base;
	uint64_t bytes;               /* mapped, a multiple of the page size */
	struct relay_descriptor file; /* RELAY_NO_DESCRIPTOR once it was closed */
	uint32_t guard;               /* its slot in the guard's table, + 1; 0: it is not guarded */
};

/* Make file `name` in directory dir_fd with all its memory allocated, so that no store to a mapping of it can fail
 * later. Returns its descriptor, or -errno; on failure nothing is left. -ENOSPC: there is not enough memory; -EFBIG:
 * RLIMIT_FSIZE. */
int relay_mapping_create(int dir_fd, const char *name, uint64_t bytes, mode_t mode, uid_t uid, gid_t gid);

/* As relay_mapping_create(), but the first hole_bytes, whole pages, get no memory before relay_mapping_fill(). */
int relay_mapping_create_sparse(int dir_fd, const char *name, uint64_t hole_bytes, uint64_t bytes, mode_t mode,
                                uid_t uid, gid_t gid);

/*
 * Allocate the first `bytes` bytes of a file. RLIMIT_FSIZE does not matter. Returns 0 or -errno. -ENOSPC: there is not
 * enough memory, and nothing has changed, except that an immutable file may have got a part of it; -EINVAL: the file is
 * shorter, or not regular.
 */
int relay_mapping_fill(int fd, uint64_t bytes);

/* Allocate the memory of a mapped range as stores to it would, but return an error where they would raise SIGBUS.
 * Returns 0; -ENOSPC: there is not enough memory; -EINVAL before Linux 5.14. */
int relay_mapping_populate(unsigned char *at, uint64_t bytes);

/* Free the memory of the first `bytes` bytes of a file, which then read as zeros. Returns 0 or -errno. */
int relay_mapping_punch(int fd, uint64_t bytes);

/* As relay_mapping_create(), but the file has no name, and lies in the file system of directory `dir`. */
int relay_mapping_create_unnamed(const char *dir, uint64_t bytes);

/* Set owner, group and mode of a file. Returns 0 or -errno. */
int relay_mapping_own(int fd, mode_t mode, uid_t uid, gid_t gid);

/* Open a file that should be one of a relayfs. Returns its descriptor, or -errno. -EBADMSG: it is not regular or, with
 * `in_mount`, not in a FUSE mount; such a file is not even opened. */
int relay_mapping_open(const char *path, int flags, bool in_mount);

/* Store in `backing` the path of the store's file that a mount shows as `path`. Returns 0 or -errno; -ENODATA,
 * -ENOTSUP: there is no such file, or `path` is in no mount. */
int relay_backing_file(const char *path, char backing[PATH_MAX]);

/* Open, O_RDWR, the store's file that a mount shows as mem_path, for the case that the mount's file cannot be mapped
 * (old kernel, unprivileged server). Returns its descriptor, or -errno; -ENODEV: this user may not open it. */
int relay_mapping_open_backing(const char *mem_path);

/*
 * Map the whole file of fd. On success `mapping` owns fd: relay_mapping_unmap() closes it, if nobody has before.
 * Returns 0 or -errno; -EBADMSG: the file is not regular, empty, or not a whole number of pages.
 */
int relay_mapping_map(struct relay_mapping *mapping, int fd);

/* The same for a file that is open for reading: what is stored goes to private copies of the pages. */
int relay_mapping_map_view(struct relay_mapping *mapping, int fd);
/* The same, for a moment: fd is closed at once, and `mapping` has none. */
int relay_mapping_map_glance(struct relay_mapping *mapping, int fd);
void relay_mapping_unmap(struct relay_mapping *mapping);

/* Map memory of this process alone instead of the file. On success `mapping` owns fd. Returns 0 or -errno. */
int relay_mapping_map_private(struct relay_mapping *mapping, int fd, uint64_t bytes);

/* Map the first `bytes` bytes of a file, which may be shorter: the part behind its end can be accessed once the file
 * has grown. On success `mapping` owns fd. Returns 0 or -errno. */
int relay_mapping_map_ahead(struct relay_mapping *mapping, int fd, uint64_t bytes, bool writable);

#endif
