/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "base/descriptor.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Find out which file fd is open on. The mask of fields is 0, because Linux fills in device and inode anyway; with a
 * mask, it would ask the file server, which may be slow or dead. */
static bool identify(struct relay_descriptor *descriptor, int fd)
{
	struct statx file;
	/* Older versions of musl have no statx(). */
	if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, 0, &file))
		return false;
	*descriptor = (struct relay_descriptor){
	    .fd = fd, .major = file.stx_dev_major, .minor = file.stx_dev_minor, .inode = file.stx_ino};
	return true;
}

struct relay_descriptor relay_descriptor_keep(int fd)
{
	struct relay_descriptor descriptor;
	return fd >= 0 && identify(&descriptor, fd) ? descriptor : (struct relay_descriptor){.fd = fd};
}

bool relay_descriptor_is_ours(const struct relay_descriptor *descriptor)
{
	struct relay_descriptor now;
	return descriptor->fd >= 0 && identify(&now, descriptor->fd) && now.major == descriptor->major &&
	       now.minor == descriptor->minor && now.inode == descriptor->inode;
}

int relay_descriptor_copy(int fd)
{
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	return copy < 0 ? -errno : copy;
}

void relay_descriptor_close(struct relay_descriptor *descriptor)
{
	if (relay_descriptor_is_ours(descriptor))
		close(descriptor->fd);
	*descriptor = RELAY_NO_DESCRIPTOR;
}
