/* SPDX-License-Identifier: MIT */
/* Directories of a store come and go at once: they are made, or deleted, under a hidden name. */
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

/* The directory stays its maker's: whoever else may write to it could put another file under a name. Programs
 * that map the store's files may pass through; what they may open, the files' own modes say. */
enum { DIR_MODE = 0711, IMPLICIT_MODE = RELAY_IMPLICIT_MARK | 0755, HIDDEN_TRIES = 1000 };

static void remove_dir(const char *dir, uint32_t n_buffers)
{
	char name[32];
	int dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	for (uint32_t cpu = 0; dir_fd >= 0 && cpu < n_buffers; cpu++) {
		snprintf(name, sizeof(name), "mem%u", cpu);
		relay_file_unlinkat(dir_fd, name);
	}
	if (dir_fd >= 0)
		close(dir_fd);
	rmdir(dir);
}

/* "PARENT/.new-PID-N-CHANNEL": hidden until it is whole, or before it goes. */
static char *hidden_name(const char *dir, const char *why, unsigned n)
{
	const char *slash = strrchr(dir, '/');
	int parent = slash ? (int)(slash - dir + 1) : 0;
	char *name = NULL;
	int length = asprintf(&name, "%.*s.%s-%ld-%u-%s", parent, dir, why, (long)getpid(), n, dir + parent);
	return length < 0 ? NULL : name;
}

/* Do it under the first such name that is free: who died over one may have had our process id. */
static int hide(const char *dir, const char *why, int (*act)(const char *dir, const char *hidden), char **hidden)
{
	int err = -EEXIST;
	*hidden = NULL;
	for (unsigned n = 0; err == -EEXIST && n < HIDDEN_TRIES; n++) {
		free(*hidden);
		*hidden = hidden_name(dir, why, n);
		err = *hidden ? act(dir, *hidden) : -ENOMEM;
	}
	return err;
}

static int make_hidden(const char *dir, const char *hidden)
{
	(void)dir;
	return mkdir(hidden, 0700) ? -errno : 0;
}

static int move_away(const char *dir, const char *hidden)
{
	return relay_rename_new(AT_FDCWD, dir, AT_FDCWD, hidden) ? -errno : 0;
}

static int fill(const char *staging, uint32_t n_buffers, relay_put_buffer *put, const void *arg)
{
	int dir_fd = open(staging, O_RDONLY | O_DIRECTORY | O_CLOEXEC), err = 0;
	if (dir_fd < 0)
		return -errno;
	for (uint32_t cpu = 0; !err && cpu < n_buffers; cpu++) {
		char name[32];
		snprintf(name, sizeof(name), "mem%u", cpu);
		err = put(dir_fd, name, cpu, arg);
	}
	if (!err && fchmod(dir_fd, DIR_MODE))
		err = -errno;
	close(dir_fd);
	return err;
}

int relay_make_dir(const char *dir, uint32_t n_buffers, relay_put_buffer *put, const void *arg)
{
	char *staging;
	int err = hide(dir, "new", make_hidden, &staging);
	if (!err) {
		err = fill(staging, n_buffers, put, arg);
		/* An empty directory would be replaced by rename(2). */
		if (!err && relay_rename_new(AT_FDCWD, staging, AT_FDCWD, dir))
			err = -errno;
		if (err)
			remove_dir(staging, n_buffers);
	}
	free(staging);
	return err;
}

/* --- channels that are there already --- */

static int link_open_file(int fd, int dir_fd, const char *name)
{
	char open_file[64];
	snprintf(open_file, sizeof(open_file), "/proc/self/fd/%d", fd);
	return linkat(AT_FDCWD, open_file, dir_fd, name, AT_SYMLINK_FOLLOW) ? -errno : 0;
}

/* The same file, reached through the mount of dir_fd; -EXDEV: it lies elsewhere, or only root can do this. */
static int open_beside(int fd, int dir_fd)
{
	union {
		struct file_handle handle;
		char room[sizeof(struct file_handle) + MAX_HANDLE_SZ];
	} file = {.handle.handle_bytes = MAX_HANDLE_SZ};
	struct stat there, here;
	int mount_id;
	if (fstat(fd, &there) || fstat(dir_fd, &here) || there.st_dev != here.st_dev ||
	    name_to_handle_at(fd, "", &file.handle, &mount_id, AT_EMPTY_PATH))
		return -EXDEV;
	int beside = open_by_handle_at(dir_fd, &file.handle, O_RDWR | O_CLOEXEC);
	return beside < 0 ? -EXDEV : beside;
}

static int link_buffer(int dir_fd, const char *name, uint32_t cpu, const void *arg)
{
	int fd = ((const int *)arg)[cpu];
	int err = link_open_file(fd, dir_fd, name);
	if (err != -EXDEV)
		return err;
	/* Linux links within one mount only; a program in a mount namespace of its own has another one of this store. */
	int beside = open_beside(fd, dir_fd);
	if (beside < 0)
		return beside;
	err = link_open_file(beside, dir_fd, name);
	close(beside);
	return err;
}

/* What relay_store_copy() is asked for. */
struct copying {
	const int *fds;
	uint32_t file_mode, uid, gid;
};

static int copy_contents(int to, int from, uint64_t bytes)
{
	for (off_t at = 0; (uint64_t)at < bytes;) {
		ssize_t n = sendfile(to, from, &at, bytes - (uint64_t)at);
		if (n <= 0)
			return n ? -errno : -EBADMSG; /* its owner has truncated it meanwhile */
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
	int err = copy_contents(fd, copying->fds[cpu], bytes);
	close(fd);
	return err;
}

int relay_store_adopt(const char *dir, const int *fds, size_t n)
{
	if (n == 0 || n > RELAY_MAX_BUFFERS)
		return -EINVAL;
	/* Asked before: a file that loses its name again never gets another. */
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
	char *hidden;
	int err = hide(dir, "removed", move_away, &hidden);
	if (!err)
		remove_dir(hidden, n_buffers);
	free(hidden);
	return err;
}

/* The mark lies in the mode, so that it goes with the directory in one rmdir(2); it is there before the directory has its name. */
int relay_implicit_make(const char *dir)
{
	char *staging;
	int err = hide(dir, "new", make_hidden, &staging);
	if (!err) {
		if (chmod(staging, IMPLICIT_MODE) || relay_rename_new(AT_FDCWD, staging, AT_FDCWD, dir))
			err = -errno;
		if (err)
			rmdir(staging);
	}
	free(staging);
	return err;
}

int relay_implicit_is(const char *dir)
{
	struct stat st;
	return lstat(dir, &st) == 0 && st.st_mode == (S_IFDIR | IMPLICIT_MODE) && st.st_uid == geteuid() &&
	       st.st_gid == getegid();
}
