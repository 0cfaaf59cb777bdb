/* SPDX-License-Identifier: MIT */
/*
 * Immutable store files. A process with a writable mapping of a file can free the file's pages by MADV_REMOVE. Then
 * other processes that map the file read zeros, and get SIGBUS for a store while tmpfs has no memory. Linux refuses
 * MADV_REMOVE if the inode is immutable (FS_IMMUTABLE_FL, tmpfs since 6.6). It also refuses fallocate(2), chmod(2),
 * link(2), unlink(2) and new descriptors for writing. Stores through mappings still work, and so does mmap(2) of
 * descriptors that are open for writing.
 *
 *     server     open O_RDWR, set the flag, register the descriptor    other users then map the file through the mount
 *     owner      clear the flag, open O_RDWR, set the flag again       only to open the file by its path in the store
 *     server     clear the flag, chown, chmod, set the flag again
 *
 * The server sets the flag before another user can map the file. Setting and clearing it requires CAP_LINUX_IMMUTABLE.
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

/* Another process may set the flag again before this one has opened or unlinked the file. */
enum { TRIES = 100 };

/* The number of the ioctl contains the size of a long, but the kernel stores an int. */
static int get_flags(int fd, int *flags)
{
	*flags = 0;
	return ioctl(fd, FS_IOC_GETFLAGS, flags);
}

/* Set or clear the flag. Returns 1 if that changed it, 0 if not, or -errno. */
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
	if (st.st_uid == geteuid() && !(st.st_mode & RELAY_PERM_STRANGERS))
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

/* Open a file so that its flag can be changed. Returns -1 if that fails or the file is not regular. */
static int open_to_clear(int dir_fd, const char *name)
{
	struct stat st;
	/* Checked before, because to open a FIFO or device could block or have effects. */
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
	/* The flag is set again also if the file was unlinked, because processes may still have it mapped. */
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
