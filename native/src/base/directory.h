/* SPDX-License-Identifier: MIT */
/*
 * Making and removing directories of the store with all their files at once. A directory is filled, and deleted, under
 * a hidden name in the same parent directory, and gets or loses its own name by rename(2):
 *
 *     .new-PID-N          until it is complete
 *     .removed-PID-N      from its removal on
 *
 * If a process dies meanwhile, it leaves a hidden directory. The file server deletes such directories when it starts
 * (relayfs_fuse/fs/store.py), in traces after some time (relayfs_fuse/fs/traces/jobs.py). A single file is made without
 * a name, which relay_file_name() then gives it. Functions return 0 or -errno. Some are declared in <relayfs/store.h>.
 */
#ifndef RELAYFS_BASE_DIRECTORY_H
#define RELAYFS_BASE_DIRECTORY_H

#include <limits.h>
#include <stdint.h>
#include <sys/types.h>

enum { RELAY_MAX_BUFFERS = 1 << 16 }; /* of one directory */

/* Open a directory for reading. Returns its descriptor or -errno; -ENOTDIR or -ELOOP if `path` is something else, such
 * as a symbolic link. */
int relay_directory_open(const char *path);

/* The beginning of the hidden name of a directory that is being made. */
#define RELAY_HIDDEN_NEW ".new-"

/* Make an empty directory in the parent of `path`, and store its path in `hidden`. Paths are relative to `at`, as in
 * openat(2). -ENAMETOOLONG: the path is too long. */
int relay_hidden_make(int at, const char *path, char hidden[PATH_MAX]);

/* Give a hidden directory its mode and the name `path`. -EEXIST: the name is taken. */
int relay_hidden_show(int at, const char *hidden, const char *path, mode_t mode);

/* Rename the directory `path` to a hidden name, and store its path in `hidden`. */
int relay_hidden_move(int at, const char *path, char hidden[PATH_MAX]);

/* Give the name `path` to a file that was opened with O_TMPFILE. -EEXIST: the name is taken; -EXDEV: fd was opened
 * through another mount than `at`. */
int relay_file_name(int fd, int at, const char *path);

/* Copy the bytes from offset `at` to offset `end` to the same offsets of the other file. -EBADMSG: `from` is
 * shorter. */
int relay_file_copy(int to, int from, off_t at, off_t end);

/* Make file `name` of buffer `cpu` in a directory that is being filled. `arg` is that of relay_make_dir(). */
typedef int relay_put_buffer(int dir_fd, const char *name, uint32_t cpu, const void *arg);

/* Make directory `dir` with files mem0 .. memN-1, each by a call of `put`. On failure nothing is left. -EEXIST: `dir`
 * exists. */
int relay_make_dir(const char *dir, uint32_t n_buffers, relay_put_buffer *put, const void *arg);

#endif
