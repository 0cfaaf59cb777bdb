/* SPDX-License-Identifier: MIT */
/* Make, map and unmap a store file. Knows no rings. */
#ifndef RELAYFS_BASE_MAPPING_H
#define RELAYFS_BASE_MAPPING_H

#include "base/descriptor.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct relay_mapping {
	unsigned char *base;
	uint64_t bytes;               /* mapped, a multiple of the page */
	struct relay_descriptor file; /* or none: it is not needed any more */
};

/* Make `name` in directory dir_fd with all its memory allocated, so that no store to it can fail later.
 * Returns its descriptor, or -errno; on failure nothing is left. */
int relay_mapping_create(int dir_fd, const char *name, uint64_t bytes, mode_t mode, uid_t uid, gid_t gid);

/* The same, but for the first hole_bytes, whole pages, which get their memory by relay_mapping_fill(). */
int relay_mapping_create_sparse(int dir_fd, const char *name, uint64_t hole_bytes, uint64_t bytes, mode_t mode,
                                uid_t uid, gid_t gid);

/* Allocate the first bytes of a file that is as long as that, whatever limits this process has. 0; -ENOSPC: there is no
 * memory, and nothing has changed, but that an immutable file may have got a part; -EINVAL: it is no such file. */
int relay_mapping_fill(int fd, uint64_t bytes);

/* Allocate what of a file is mapped there, as stores would do it, but with an error in the place of SIGBUS. 0 or -ENOSPC. */
int relay_mapping_populate(unsigned char *at, uint64_t bytes);

/* Take them back; what stood there is lost. 0 or -errno. */
int relay_mapping_punch(int fd, uint64_t bytes);

/* The same as relay_mapping_create() without a name and for this process alone, in the file system of directory `dir`. */
int relay_mapping_create_unnamed(const char *dir, uint64_t bytes);

/* Say who may use it. 0 or -errno. */
int relay_mapping_own(int fd, mode_t mode, uid_t uid, gid_t gid);

/* Open what should be a file of a relayfs: nothing happens to what is no regular file or, with `in_mount`, does not lie
 * in a FUSE mount. Returns its descriptor, or -errno (-EBADMSG: it is something else). */
int relay_mapping_open(const char *path, int flags, bool in_mount);

/* The path of the file in the store that a mount shows as `path`. 0 or -errno: -ENODATA if it shows none, or, like -ENOTSUP, if
 * `path` lies in no mount. */
int relay_backing_file(const char *path, char backing[PATH_MAX]);

/* Open, O_RDWR, the file behind a memory file of a mount that cannot be mapped (old kernel, unprivileged server).
 * Returns its descriptor, or -errno; -ENODEV: it is not within this user's reach. */
int relay_mapping_open_backing(const char *mem_path);

/* Map the whole of fd, which then belongs to mapping, and is closed with it at the latest. 0 or -errno (-EBADMSG: not a whole number of pages). */
int relay_mapping_map(struct relay_mapping *mapping, int fd);
void relay_mapping_unmap(struct relay_mapping *mapping);

/* Memory of this process alone, in the place of that of fd, which then belongs to mapping. */
int relay_mapping_map_private(struct relay_mapping *mapping, int fd, uint64_t bytes);

/* Map so many bytes of fd, more than it has perhaps: what lies behind its end becomes usable as it grows. */
int relay_mapping_map_ahead(struct relay_mapping *mapping, int fd, uint64_t bytes, bool writable);

#endif
