/* SPDX-License-Identifier: MIT */
/*
 * A mapping that may be written can also free the file's pages (MADV_REMOVE): whoever else maps the file reads zeros then, and
 * gets SIGBUS for a store while tmpfs has no memory. Linux refuses this for an immutable inode (FS_IMMUTABLE_FL, tmpfs since
 * 6.6), as it refuses fallocate(2), chmod(2), link(2), unlink(2) and new descriptors for writing; stores through mappings go on,
 * and descriptors that are open for writing still map the file.
 *
 *     server     open O_RDWR, set the flag, register the descriptor    other users map it through the mount
 *     owner      clear the flag, open O_RDWR, set the flag again       by the file's path, which hardly anybody uses
 *     server     clear the flag, chown, chmod, set the flag again
 *
 * The server sets the flag before another user can map the file. It takes CAP_LINUX_IMMUTABLE.
 */
#define _GNU_SOURCE
#include "base/immutable.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <relayfs/store.h>
#include <stdbool.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

/* Somebody else may set the flag between our clearing it and our call. */
enum { TRIES = 100 };

/* The ioctl's number says long, but the kernel takes an int. */
static int get_flags(int fd, int *flags)
{
	*flags = 0;
	return ioctl(fd, FS_IOC_GETFLAGS, flags);
}

/* 1: the flag was different before; 0: it was not. */
static int set_flag(int fd, bool is_set)
{
	int flags;
	if (get_flags(fd, &flags))
		return -errno;
	if (!(flags & FS_IMMUTABLE_FL) == !is_set)
		return 0;
	flags ^= FS_IMMUTABLE_FL;
	return ioctl(fd, FS_IOC_SETFLAGS, &flags) ? -errno : 1;
}

int relay_file_protect(int fd)
{
	struct stat st;
	if (fstat(fd, &st))
		return -errno;
	if (st.st_uid == geteuid() && !(st.st_mode & 022))
		return 0;
	int result = set_flag(fd, true);
	return result < 0 ? result : 1;
}

int relay_file_is_protected(int fd)
{
	int flags;
	return !get_flags(fd, &flags) && flags & FS_IMMUTABLE_FL;
}

int relay_file_unprotect(int fd)
{
	return set_flag(fd, false);
}

int relay_file_change_owner(int fd, uint32_t mode, uint32_t uid, uint32_t gid)
{
	bool was_set = set_flag(fd, false) > 0;
	int err = fchown(fd, uid, gid) || fchmod(fd, mode) ? -errno : 0;
	if (was_set)
		set_flag(fd, true);
	return err;
}

/* A descriptor by which the flag can be changed; -1: there is no such file that is regular. */
static int open_to_clear(int dir_fd, const char *name)
{
	struct stat st;
	/* Nothing is opened that is no regular file: it could block, or have effects. */
	if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode))
		return -1;
	return openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
}

int relay_file_openat(int dir_fd, const char *name, int flags)
{
	int fd = openat(dir_fd, name, flags), err = fd < 0 ? -errno : 0;
	int plain = err == -EPERM ? open_to_clear(dir_fd, name) : -1;
	bool was_set = false;
	for (int tries = 0; plain >= 0 && fd < 0 && tries < TRIES; tries++) {
		int cleared = set_flag(plain, false);
		if (cleared < 0)
			break;
		was_set |= cleared;
		fd = openat(dir_fd, name, flags);
	}
	if (was_set)
		set_flag(plain, true);
	if (plain >= 0)
		close(plain);
	return fd < 0 ? err : fd;
}

int relay_file_unlinkat(int dir_fd, const char *name)
{
	int err = unlinkat(dir_fd, name, 0) ? -errno : 0;
	int fd = err == -EPERM ? open_to_clear(dir_fd, name) : -1;
	bool was_set = false;
	for (int tries = 0; fd >= 0 && err == -EPERM && tries < TRIES; tries++) {
		int cleared = set_flag(fd, false);
		if (cleared < 0)
			break;
		was_set |= cleared;
		err = unlinkat(dir_fd, name, 0) ? -errno : 0;
	}
	/* Without a name it is still mapped. */
	if (was_set)
		set_flag(fd, true);
	if (fd >= 0)
		close(fd);
	return err;
}

int relay_file_open(const char *path)
{
	return relay_file_openat(AT_FDCWD, path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
}

int relay_file_unlink(const char *path)
{
	return relay_file_unlinkat(AT_FDCWD, path);
}
