/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "base/directory.h"

#include "base/immutable.h"
#include "base/libc.h"
#include "base/mapping.h"

#include <relayfs/store.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

enum { IMPLICIT_MODE = RELAY_IMPLICIT_MARK | RELAY_PERM_PLAIN, HIDDEN_TRIES = 10000 };

int relay_directory_open(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	return fd < 0 ? -errno : fd;
}

/* --- hidden names --- */

static int make_hidden(int at, const char *path, const char *hidden)
{
	(void)path;
	return mkdirat(at, hidden, RELAY_PERM_NEW_DIR) ? -errno : 0;
}

static int move_to_hidden(int at, const char *path, const char *hidden)
{
	return relay_rename_new(at, path, at, hidden) ? -errno : 0;
}

/* Call `act` with hidden names until one is not taken. A name with this process's id may be taken by the directory that
 * a dead process with the same id has left. */
static int hide(int at, const char *path, const char *why, int (*act)(int at, const char *path, const char *hidden),
                char hidden[PATH_MAX])
{
	static unsigned made;
	const char *slash = strrchr(path, '/');
	int parent = slash ? (int)(slash - path + 1) : 0, err = -EEXIST;
	for (int tries = 0; err == -EEXIST && tries < HIDDEN_TRIES; tries++) {
		/* Relaxed: the addition only makes n unique among this process's threads. */
		unsigned n = __atomic_fetch_add(&made, 1, __ATOMIC_RELAXED);
		int length = snprintf(hidden, PATH_MAX, "%.*s.%s-%ld-%u", parent, path, why, (long)getpid(), n);
		err = length < PATH_MAX ? act(at, path, hidden) : -ENAMETOOLONG;
	}
	return err;
}

int relay_hidden_make(int at, const char *path, char hidden[PATH_MAX])
{
	return hide(at, path, "new", make_hidden, hidden);
}

int relay_hidden_move(int at, const char *path, char hidden[PATH_MAX])
{
	return hide(at, path, "removed", move_to_hidden, hidden);
}

/* relay_rename_new() is used because rename(2) would replace an empty directory. */
int relay_hidden_show(int at, const char *hidden, const char *path, mode_t mode)
{
	return fchmodat(at, hidden, mode, 0) || relay_rename_new(at, hidden, at, path) ? -errno : 0;
}

int relay_file_name(int fd, int at, const char *path)
{
	char open_file[64];
	snprintf(open_file, sizeof(open_file), "/proc/self/fd/%d", fd);
	return linkat(AT_FDCWD, open_file, at, path, AT_SYMLINK_FOLLOW) ? -errno : 0;
}

/* --- directories of channels --- */

static void remove_dir(const char *dir, uint32_t n_buffers)
{
	char name[32];
	int dir_fd = relay_directory_open(dir);
	for (uint32_t cpu = 0; dir_fd >= 0 && cpu < n_buffers; cpu++) {
		snprintf(name, sizeof(name), "mem%u", cpu);
		relay_file_unlinkat(dir_fd, name);
	}
	if (dir_fd >= 0)
		close(dir_fd);
	rmdir(dir);
}

static int fill(const char *hidden, uint32_t n_buffers, relay_put_buffer *put, const void *arg)
{
	int dir_fd = relay_directory_open(hidden), err = 0;
	if (dir_fd < 0)
		return dir_fd;
	for (uint32_t cpu = 0; !err && cpu < n_buffers; cpu++) {
		char name[32];
		snprintf(name, sizeof(name), "mem%u", cpu);
		err = put(dir_fd, name, cpu, arg);
	}
	close(dir_fd);
	return err;
}

int relay_make_dir(const char *dir, uint32_t n_buffers, relay_put_buffer *put, const void *arg)
{
	char hidden[PATH_MAX];
	int err = relay_hidden_make(AT_FDCWD, dir, hidden);
	if (err)
		return err;
	err = fill(hidden, n_buffers, put, arg);
	if (!err)
		err = relay_hidden_show(AT_FDCWD, hidden, dir, RELAY_PERM_INNER);
	if (err)
		remove_dir(hidden, n_buffers);
	return err;
}

/* Open the file of fd again, through the mount of dir_fd. Returns the descriptor, or -EXDEV: the file lies in another
 * file system, or this process is not root. */
static int reopen_in_mount(int fd, int dir_fd)
{
	union {
		struct file_handle handle;
		char room[sizeof(struct file_handle) + MAX_HANDLE_SZ];
	} file = {.handle.handle_bytes = MAX_HANDLE_SZ};
	struct stat of_file, of_dir;
	int mount_id;
	if (fstat(fd, &of_file) || fstat(dir_fd, &of_dir) || of_file.st_dev != of_dir.st_dev ||
	    name_to_handle_at(fd, "", &file.handle, &mount_id, AT_EMPTY_PATH))
		return -EXDEV;
	int reopened = open_by_handle_at(dir_fd, &file.handle, O_RDWR | O_CLOEXEC);
	return reopened < 0 ? -EXDEV : reopened;
}

static int link_buffer(int dir_fd, const char *name, uint32_t cpu, const void *arg)
{
	int fd = ((const int *)arg)[cpu];
	int err = relay_file_name(fd, dir_fd, name);
	if (err != -EXDEV)
		return err;
	/* linkat(2) works within one mount only. A program in a mount namespace of its own has opened fd through
	 * another mount. */
	int reopened = reopen_in_mount(fd, dir_fd);
	if (reopened < 0)
		return reopened;
	err = relay_file_name(reopened, dir_fd, name);
	close(reopened);
	return err;
}

/* The argument of copy_buffer(). */
struct copying {
	const int *fds;
	uint32_t file_mode, uid, gid;
};

int relay_file_copy(int to, int from, off_t at, off_t end)
{
	if (lseek(to, at, SEEK_SET) < 0)
		return -errno;
	while (at < end) {
		ssize_t n = sendfile(to, from, &at, (size_t)(end - at));
		if (n <= 0)
			return n ? -errno : -EBADMSG; /* end of the file: it was truncated meanwhile */
	}
	return 0;
}

static int copy_buffer(int dir_fd, const char *name, uint32_t cpu, const void *arg)
{
	struct stat st;
	const struct copying *copying = arg;
	if (fstat(copying->fds[cpu], &st))
		return -errno;
	uint64_t bytes = (uint64_t)st.st_size;
	int fd = relay_mapping_create(dir_fd, name, bytes, copying->file_mode, copying->uid, copying->gid);
	if (fd < 0)
		return fd;
	int err = relay_file_copy(fd, copying->fds[cpu], 0, st.st_size);
	close(fd);
	return err;
}

int relay_store_adopt(const char *dir, const int *fds, size_t n)
{
	if (n == 0 || n > RELAY_MAX_BUFFERS)
		return -EINVAL;
	/* Checked here before relay_make_dir() links the files, because a file made with O_TMPFILE cannot be linked
	 * again after its last name was removed. */
	if (access(dir, F_OK) == 0)
		return -EEXIST;
	return relay_make_dir(dir, (uint32_t)n, link_buffer, fds);
}

int relay_store_copy(const char *dir, const int *fds, size_t n, uint32_t file_mode, uint32_t uid, uint32_t gid)
{
	struct copying copying = {.fds = fds, .file_mode = file_mode, .uid = uid, .gid = gid};
	if (n == 0 || n > RELAY_MAX_BUFFERS || file_mode & ~0777u)
		return -EINVAL;
	return relay_make_dir(dir, (uint32_t)n, copy_buffer, &copying);
}

int relay_store_remove(const char *dir, uint32_t n_buffers)
{
	char hidden[PATH_MAX];
	int err = relay_hidden_move(AT_FDCWD, dir, hidden);
	if (!err)
		remove_dir(hidden, n_buffers);
	return err;
}

/* The mark is a bit of the mode, so that rmdir(2) removes it together with the directory. It is set before the
 * directory gets its name. */
int relay_implicit_make(const char *dir)
{
	char hidden[PATH_MAX];
	int err = relay_hidden_make(AT_FDCWD, dir, hidden);
	if (err)
		return err;
	err = relay_hidden_show(AT_FDCWD, hidden, dir, IMPLICIT_MODE);
	if (err)
		rmdir(hidden);
	return err;
}

int relay_implicit_is(const char *dir)
{
	struct stat st;
	return lstat(dir, &st) == 0 && st.st_mode == (S_IFDIR | IMPLICIT_MODE) && st.st_uid == geteuid() &&
	       st.st_gid == getegid();
}
