/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "store/remote_file.h"

#include "base/mapping.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int relay_remote_text(const struct relay_place *place, const char *name, char *text, size_t size)
{
	char *path;
	if (asprintf(&path, "%s/.channels/%s/%s", place->root, place->channel, name) < 0)
		return -ENOMEM;
	int fd = relay_mapping_open(path, O_RDONLY, true);
	free(path);
	if (fd < 0)
		return fd;
	ssize_t got = read(fd, text, size - 1);
	int err = got < 0 ? -errno : 0;
	close(fd);
	text[got > 0 ? got : 0] = 0;
	text[strcspn(text, "\n")] = 0;
	return err;
}

int relay_remote_number(const struct relay_place *place, const char *name, uint64_t *number)
{
	char text[32], *end;
	int err = relay_remote_text(place, name, text, sizeof(text));
	if (err)
		return err;
	*number = strtoull(text, &end, 10);
	return end == text || *end ? -EBADMSG : 0;
}

int relay_remote_check_type(const struct relay_place *place, const char *type)
{
	char text[16];
	int err = relay_remote_text(place, "type", text, sizeof(text));
	if (err || strcmp(text, type) == 0)
		return err;
	return strcmp(text, "relay") == 0 || strcmp(text, "ring") == 0 ? -EMEDIUMTYPE : -EBADMSG;
}

int relay_remote_file_open(const struct relay_place *place, uint32_t buffer, int flags)
{
	char buffers[16], *path;
	int err = relay_remote_text(place, "buffers", buffers, sizeof(buffers));
	if (err)
		return err;
	int n = strcmp(buffers, "single") == 0 ? asprintf(&path, "%s/%s", place->root, place->channel)
	                                       : asprintf(&path, "%s/%s%u", place->root, place->channel, buffer);
	if (n < 0)
		return -ENOMEM;
	int fd = relay_mapping_open(path, flags, true);
	free(path);
	return fd;
}

int relay_remote_file_append(const struct relay_place *place, uint32_t buffer)
{
	int fd = relay_remote_file_open(place, buffer, O_WRONLY | O_APPEND);
	/* Without O_NONBLOCK, with which a write to a full buffer fails with EAGAIN instead of ENOSPC. */
	if (fd >= 0)
		fcntl(fd, F_SETFL, O_APPEND);
	return fd;
}

int relay_remote_file_write(int fd, const void *data, size_t length)
{
	int saved = errno;
	int err = write(fd, data, length) < 0 ? -errno : 0;
	errno = saved;
	return err;
}
