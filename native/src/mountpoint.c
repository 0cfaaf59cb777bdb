/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "mountpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void relay_place_free(struct relay_place *place)
{
	free(place->mount);
	free(place->channel);
	*place = (struct relay_place){0};
}

char *relay_place_mem(const struct relay_place *place, uint32_t cpu)
{
	char *path;
	return asprintf(&path, "%s/.channels/%s/mem%u", place->mount, place->channel, cpu) < 0 ? NULL : path;
}

static bool has_mem(const struct relay_place *place)
{
	char *path = relay_place_mem(place, place->cpu);
	bool has = path && access(path, F_OK) == 0;
	free(path);
	return has;
}

static bool has_control(const struct relay_place *place)
{
	char *path;
	if (asprintf(&path, "%s/.channels/../control", place->mount) < 0)
		return false;
	bool has = access(path, F_OK) == 0;
	free(path);
	return has;
}

/* "app/cpu10": cpu1 + 0 or cpu + 10; the mount lets only one of them exist. */
static bool has_numbered_mem(struct relay_place *place)
{
	size_t length = strlen(place->channel);
	for (size_t cut = length; cut > 1 && place->channel[cut - 1] >= '0' && place->channel[cut - 1] <= '9'; cut--) {
		if (length - cut >= 6 || (place->channel[cut - 1] == '0' && cut < length))
			continue; /* no such CPU number, or "00" */
		char *whole = place->channel;
		char *shorter = strndup(whole, cut - 1);
		if (!shorter)
			return false;
		place->cpu = (uint32_t)strtoul(whole + cut - 1, NULL, 10);
		place->channel = shorter;
		if (has_mem(place)) {
			free(whole);
			return true;
		}
		free(shorter);
		place->channel = whole;
	}
	place->cpu = 0;
	return false;
}

static bool is_file(struct relay_place *place)
{
	/* buffers=single: the relay file has the channel's own name */
	return has_numbered_mem(place) || has_mem(place);
}

static bool is_channel(struct relay_place *place)
{
	return has_mem(place);
}

static bool is_new(struct relay_place *place)
{
	return has_control(place);
}

/* Cut the path at each slash, from the right, until `fits`. */
static int find(struct relay_place *place, const char *path, bool (*fits)(struct relay_place *))
{
	if (!path || !*path || path[strlen(path) - 1] == '/')
		return -EINVAL;
	for (const char *cut = path + strlen(path); cut > path;) {
		const char *slash = memrchr(path, '/', (size_t)(cut - path));
		if (!slash)
			break;
		*place =
		    (struct relay_place){.mount = slash == path ? strdup("/") : strndup(path, (size_t)(slash - path)),
		                         .channel = strdup(slash + 1)};
		if (!place->mount || !place->channel) {
			relay_place_free(place);
			return -ENOMEM;
		}
		if (fits(place))
			return 0;
		relay_place_free(place);
		cut = slash;
	}
	/* all of it, below the working directory */
	*place = (struct relay_place){.mount = strdup(path[0] == '/' ? "/" : "."),
	                              .channel = strdup(path + (path[0] == '/'))};
	if (place->mount && place->channel && fits(place))
		return 0;
	relay_place_free(place);
	return -ENOENT;
}

int relay_place_new(struct relay_place *place, const char *path)
{
	return find(place, path, is_new);
}

int relay_place_channel(struct relay_place *place, const char *path)
{
	return find(place, path, is_channel);
}

int relay_place_file(struct relay_place *place, const char *path)
{
	return find(place, path, is_file);
}

int relay_place_control(const struct relay_place *place, const char *command, const char *options)
{
	char *file = NULL, *line = NULL;
	if (place->channel[strcspn(place->channel, " \t\n\"\\")] || strchr(options, '\n'))
		return -EINVAL;
	int err = asprintf(&file, "%s/control", place->mount) < 0 ||
	                  asprintf(&line, "%s %s %s\n", command, place->channel, options) < 0
	              ? -ENOMEM
	              : 0;
	int fd = err ? -1 : open(file, O_WRONLY | O_CLOEXEC);
	if (!err && (fd < 0 || write(fd, line, strlen(line)) < 0))
		err = -errno;
	if (fd >= 0)
		close(fd);
	free(file);
	free(line);
	return err;
}
