/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "base/shown.h"

#include <errno.h>
#include <fcntl.h>
#include <relayfs/store.h>
#include <sys/stat.h>
#include <unistd.h>

static void fill_in(struct relay_shown *shown, const struct stat *status)
{
	*shown = (struct relay_shown){.inode = status->st_ino,
	                              .mode = status->st_mode,
	                              .uid = status->st_uid,
	                              .gid = status->st_gid,
	                              .ctime_ns = status->st_ctim.tv_sec * 1000000000ll + status->st_ctim.tv_nsec};
}

int relay_show_open(const char *path, struct relay_shown *shown)
{
	struct stat status;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return -errno;
	if (fstat(fd, &status)) {
		int err = -errno;
		close(fd);
		return err;
	}
	fill_in(shown, &status);
	return fd;
}

int relay_show_status(const struct relay_mapping *mapping, const char *path, struct relay_shown *shown)
{
	struct stat status;
	int fd = mapping->file.fd;
	if (fd >= 0 ? fstat(fd, &status) : fstatat(AT_FDCWD, path, &status, AT_SYMLINK_NOFOLLOW))
		return -errno;
	fill_in(shown, &status);
	return 0;
}
