/* SPDX-License-Identifier: MIT */
/*
 * What lies in a store comes and goes at once. A directory is made, and deleted, under a hidden name beside its own:
 *
 *     .new-PID-N          until it is whole
 *     .removed-PID-N      from the moment when it is to go
 *
 * What a dead process leaves is therefore hidden, and a server deletes it: when it starts (relayfs_fuse/fs/store.py), or in
 * traces after a while (relayfs_fuse/fs/traces/jobs.py). A file is made without a name. Functions return 0 or -errno.
 */
#ifndef RELAYFS_BASE_DIRECTORY_H
#define RELAYFS_BASE_DIRECTORY_H

#include <limits.h>
#include <stdint.h>
#include <sys/types.h>

enum {
	RELAY_MAX_BUFFERS = 1 << 16, /* of one directory */
	/* A directory stays its maker's: whoever else may write to it could put another file under a name. Programs that map
	 * the store's files may pass through; what they may open, the files' own modes say. */
	RELAY_DIR_MODE = 0711
};

/* A directory that is no symbolic link. Its descriptor or -errno. */
int relay_directory_open(const char *path);

/* Of the name of a directory that is being made. */
#define RELAY_HIDDEN_NEW ".new-"

/* Make an empty directory, for this user alone, in the directory in which `path` lies; paths are relative to `at`, as of openat(2). */
int relay_hidden_make(int at, const char *path, char hidden[PATH_MAX]);

/* Give it its mode and its name. -EEXIST: that is taken. */
int relay_hidden_show(int at, const char *hidden, const char *path, mode_t mode);

/* Take a directory away. */
int relay_hidden_move(int at, const char *path, char hidden[PATH_MAX]);

/* Give a file without a name, opened with O_TMPFILE, its name. -EEXIST: that is taken; -EXDEV: `at` is reached through another mount. */
int relay_file_name(int fd, int at, const char *path);

/* Copy the bytes from `at` to `end`, in the same place. -EBADMSG: there are not so many. */
int relay_file_copy(int to, int from, off_t at, off_t end);

/* Put buffer `cpu` under its name into a directory that is being filled. */
typedef int relay_put_buffer(int dir_fd, const char *name, uint32_t cpu, const void *arg);

/* Make directory `dir` with all its buffers, mem0 .. memN-1. On failure nothing is left behind. */
int relay_make_dir(const char *dir, uint32_t n_buffers, relay_put_buffer *put, const void *arg);

#endif
