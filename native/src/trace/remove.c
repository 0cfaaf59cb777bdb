/* SPDX-License-Identifier: MIT */
/* Removing the directory of a process in a trace: relay_trace_remove() and relay_trace_remove_dead(). */
#define _GNU_SOURCE
#include "base/directory.h"
#include "base/immutable.h"
#include "trace/alive.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <relayfs/trace_store.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_DEPTH = 3 }; /* of directories in the directory */

static void empty_dir(int fd, int depth);

/* Remove a file, or a directory with everything in it. Only the store's owner can make directories there, so that no
 * other user can make them deeper than MAX_DEPTH. */
static void remove_entry(int dir_fd, const char *name, int depth)
{
	int err = relay_file_unlinkat(dir_fd, name);
	if (!err || (err != -EISDIR && err != -EPERM))
		return;
	int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (fd >= 0 && depth < MAX_DEPTH)
		empty_dir(fd, depth + 1);
	else if (fd >= 0)
		close(fd);
	unlinkat(dir_fd, name, AT_REMOVEDIR);
}

/* Remove everything in the directory fd, and close fd. */
static void empty_dir(int fd, int depth)
{
	DIR *dir = fdopendir(fd);
	if (!dir) {
		close(fd);
		return;
	}
	for (struct dirent *entry; (entry = readdir(dir));)
		if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
			remove_entry(dirfd(dir), entry->d_name, depth);
	closedir(dir);
}

/* Close the buffers, so that processes that have them mapped stop writing. */
static void close_buffers(int dir_fd)
{
	char name[64];
	for (uint32_t cpu = 0;; cpu++) {
		snprintf(name, sizeof(name), "cpu/mem%u", cpu);
		int fd = relay_file_openat(dir_fd, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
		if (fd < 0)
			return;
		struct rchan_buf *buf = relay_buf_fdopen(fd);
		struct relay_stats stats;
		if (buf && relay_buf_stats(buf, &stats) == 0 && !stats.closed)
			relay_buf_stop(buf, RELAY_CLOSED, 1);
		relay_buf_release(buf);
		close(fd);
	}
}

/* Rename the directory to a hidden name, then remove everything in it. Processes may still be writing to it. */
static int remove_named(int parent_fd, const char *name)
{
	char hidden[PATH_MAX];
	int err = relay_hidden_move(parent_fd, name, hidden);
	if (err)
		return err;
	int fd = openat(parent_fd, hidden, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (fd >= 0)
		close_buffers(fd);
	if (fd >= 0)
		empty_dir(fd, 0);
	return unlinkat(parent_fd, hidden, AT_REMOVEDIR) ? -errno : 0;
}

int relay_trace_remove(const char *dir)
{
	char parent[PATH_MAX];
	if (snprintf(parent, sizeof(parent), "%s", dir) >= (int)sizeof(parent))
		return -ENAMETOOLONG;
	char *slash = strrchr(parent, '/');
	if (!slash || !slash[1])
		return -EINVAL;
	*slash = 0;
	int fd = relay_directory_open(parent);
	if (fd < 0)
		return fd;
	int err = remove_named(fd, slash + 1);
	close(fd);
	return err;
}

/* Lock .events so that no process can join the directory until fd is closed. 0 or -errno: -EBUSY: a process writes to
 * the directory, or was offered it. */
static int lock_against_processes(int fd)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	if (fcntl(fd, F_OFD_SETLK, &lock))
		return errno == EAGAIN || errno == EACCES ? -EBUSY : -errno;
	/* Pairs with mark_offered(), trace/process_dir.c: an offer was made before this lock was taken and is found
	 * here, or it fails while the lock is held. */
	return relay_trace_is_offered(fd) ? -EBUSY : 0;
}

/* True if fd is open on the file with this path. */
static bool is_at(const char *path, int fd)
{
	struct stat by_name, opened;
	return lstat(path, &by_name) == 0 && fstat(fd, &opened) == 0 && by_name.st_dev == opened.st_dev &&
	       by_name.st_ino == opened.st_ino;
}

int relay_trace_remove_dead(const char *dir)
{
	/* Another process may remove the directory and make a new one with the same name meanwhile, which is_at()
	 * finds. A directory without .events has no writer, because directories get their names when they are
	 * complete. */
	int dir_fd = relay_directory_open(dir);
	if (dir_fd < 0)
		return dir_fd;
	int fd = openat(dir_fd, ".events", O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	int err = fd >= 0 ? lock_against_processes(fd) : errno == ENOENT ? 0 : -errno;
	if (!err && !is_at(dir, dir_fd))
		err = -ENOENT;
	if (!err)
		err = relay_trace_remove(dir);
	if (fd >= 0)
		close(fd);
	close(dir_fd);
	return err;
}
