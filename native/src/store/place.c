/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "store/place.h"

#include "base/mapping.h"
#include "store/find.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <relayfs/layout.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void relay_place_free(struct relay_place *place)
{
	free(place->root);
	free(place->channel);
	*place = (struct relay_place){0};
}

char *relay_place_mem(const struct relay_place *place, uint32_t cpu)
{
	char *path;
	const char *format = place->in_store ? "%s/%s/mem%u" : "%s/.channels/%s/mem%u";
	return asprintf(&path, format, place->root, place->channel, cpu) < 0 ? NULL : path;
}

static bool has_mem(const struct relay_place *place)
{
	char *path = relay_place_mem(place, place->cpu);
	bool has = path && access(path, F_OK) == 0;
	free(path);
	return has;
}

/* As the buffer itself has it. */
static bool is_single_in_store(const struct relay_place *place)
{
	struct relay_geometry geometry = {0};
	struct stat st;
	char *path = relay_place_mem(place, 0);
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK) : -1;
	free(path);
	if (fd < 0)
		return false;
	bool known = fstat(fd, &st) == 0 &&
	             pread(fd, &geometry, sizeof(geometry), st.st_size - RELAY_PAGE_BYTES) == (ssize_t)sizeof(geometry);
	close(fd);
	return known && geometry.magic == RELAY_MAGIC && geometry.buffers == RELAY_SINGLE;
}

/* As the mount shows it: to open the memory itself would be taken for a mapping. */
static bool is_single_in_mount(const struct relay_place *place)
{
	static const char single[] = "single";
	char *path, text[sizeof(single)] = "";
	if (asprintf(&path, "%s/.channels/%s/buffers", place->root, place->channel) < 0)
		return false;
	int fd = relay_mapping_open(path, O_RDONLY, true);
	free(path);
	ssize_t got = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);
	if (fd >= 0)
		close(fd);
	return got == sizeof(single) - 1 && memcmp(text, single, sizeof(single) - 1) == 0;
}

/* Has the channel one relay file, of its own name? */
static bool is_single(const struct relay_place *place)
{
	return place->in_store ? is_single_in_store(place) : is_single_in_mount(place);
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
		if (has_mem(place) && !is_single(place)) {
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
	return has_numbered_mem(place) || (has_mem(place) && is_single(place));
}

static bool is_channel(struct relay_place *place)
{
	return has_mem(place);
}

static bool is_new(struct relay_place *place)
{
	return place->in_store || relay_has_control(place->root, F_OK);
}

static int place_at(struct relay_place *place, char *root, bool in_store, const char *channel)
{
	*place = (struct relay_place){.root = root, .in_store = in_store, .channel = strdup(channel)};
	if (place->root && place->channel)
		return 0;
	relay_place_free(place);
	return -ENOMEM;
}

/* Cut the path at each slash, from the right, until `fits`. */
static int find_mount(struct relay_place *place, const char *path, bool (*fits)(struct relay_place *))
{
	for (const char *cut = path + strlen(path); cut > path;) {
		const char *slash = memrchr(path, '/', (size_t)(cut - path));
		if (!slash)
			break;
		char *root = slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
		int err = place_at(place, root, false, slash + 1);
		if (err || fits(place))
			return err;
		relay_place_free(place);
		cut = slash;
	}
	/* all of it, below the working directory */
	int err = place_at(place, strdup(path[0] == '/' ? "/" : "."), false, path + (path[0] == '/'));
	if (err || fits(place))
		return err;
	relay_place_free(place);
	return -ENOENT;
}

/* What follows `root` and a slash in path; NULL: path does not lie below it. */
static const char *below(const char *root, const char *path)
{
	size_t length = root ? strlen(root) : 0;
	while (length > 1 && root[length - 1] == '/')
		length--;
	if (length == 0 || strncmp(path, root, length) != 0 || path[length] != '/')
		return NULL;
	path += length + strspn(path + length, "/");
	return *path ? path : NULL;
}

/* Below $RELAYFS, at which nothing is mounted, or below the default store. */
static int find_in_store(struct relay_place *place, const char *path, bool (*fits)(struct relay_place *))
{
	char store[PATH_MAX];
	int err = relay_default_store(store);
	if (err)
		return err;
	const char *channel = below(getenv("RELAYFS"), path);
	if (!channel)
		channel = below(store, path);
	if (!channel || !relay_store_is_trusted(store))
		return channel ? -EACCES : -ENOENT;
	char *mountpoint = relay_store_mountpoint(store);
	err = place_at(place, mountpoint ? mountpoint : strdup(store), !mountpoint, channel);
	if (err || fits(place))
		return err;
	relay_place_free(place);
	return -ENOENT;
}

static int find(struct relay_place *place, const char *path, bool (*fits)(struct relay_place *))
{
	if (!path || !*path || path[strlen(path) - 1] == '/')
		return -EINVAL;
	int err = find_mount(place, path, fits);
	return err == -ENOENT ? find_in_store(place, path, fits) : err;
}

int relay_place_new(struct relay_place *place, const char *path)
{
	return find(place, path, is_new);
}

/* Is the path that of a directory in a mount? */
static bool is_directory(const char *path)
{
	struct relay_place place;
	struct stat st;
	if (stat(path, &st) || !S_ISDIR(st.st_mode) || find_mount(&place, path, is_new))
		return false;
	relay_place_free(&place);
	return true;
}

/* As find(), of what must be there. */
static int find_existing(struct relay_place *place, const char *path, bool (*fits)(struct relay_place *))
{
	int err = find(place, path, fits);
	return err == -ENOENT && is_directory(path) ? -EISDIR : err;
}

int relay_place_channel(struct relay_place *place, const char *path)
{
	return find_existing(place, path, is_channel);
}

int relay_place_file(struct relay_place *place, const char *path)
{
	return find_existing(place, path, is_file);
}

bool relay_place_is_taken(const struct relay_place *place, const char *path)
{
	char *name;
	struct relay_place there;
	struct stat st;
	if (asprintf(&name, "%s/%s", place->root, path) < 0)
		return true;
	bool taken = lstat(name, &st) == 0;
	free(name);
	if (taken || place_at(&there, strdup(place->root), true, path))
		return true;
	taken = is_file(&there);
	relay_place_free(&there);
	return taken;
}

void relay_place_refresh(struct relay_place *place)
{
	char *mountpoint = place->in_store ? relay_store_mountpoint(place->root) : NULL;
	if (!mountpoint)
		return;
	free(place->root);
	place->root = mountpoint;
	place->in_store = false;
}

int relay_place_control(const struct relay_place *place, const char *command, const char *words)
{
	char *file = NULL, *line = NULL;
	if (place->channel[strcspn(place->channel, " \t\n\"\\")] || strchr(words, '\n'))
		return -EINVAL;
	int err = asprintf(&file, "%s/control", place->root) < 0 ||
	                  asprintf(&line, "%s %s %s\n", command, place->channel, words) < 0
	              ? -ENOMEM
	              : 0;
	int fd = err ? err : relay_mapping_open(file, O_WRONLY, true);
	if (fd < 0)
		err = fd;
	else if (write(fd, line, strlen(line)) < 0)
		err = -errno;
	if (fd >= 0)
		close(fd);
	free(file);
	free(line);
	return err;
}
