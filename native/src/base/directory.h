/* SPDX-License-Identifier: MIT */
/* A directory of memory files mem0 .. memN-1 in a store. */
#ifndef RELAYFS_BASE_DIRECTORY_H
#define RELAYFS_BASE_DIRECTORY_H

#include <stdint.h>

enum { RELAY_MAX_BUFFERS = 1 << 16 }; /* of one directory */

/* Put buffer `cpu` under its name into a directory that is being filled. 0 or -errno. */
typedef int relay_put_buffer(int dir_fd, const char *name, uint32_t cpu, const void *arg);

/* Make directory `dir` with all its buffers, at once. 0 or -errno; on failure nothing is left behind. */
int relay_make_dir(const char *dir, uint32_t n_buffers, relay_put_buffer *put, const void *arg);

#endif
