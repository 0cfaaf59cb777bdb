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

static int check_component(const char *name, size_t length, size_t max_bytes)
{
	if (length == 0 || name[0] == '.')
		return -EINVAL;
	for (size_t i = 0; i < length; i++)
		if ((unsigned char)name[i] <= ' ' || name[i] == 127 || strchr("\"\\", name[i]))
			return -EINVAL;
	return length > max_bytes ? -ENAMETOOLONG : 0;
}

int relay_check_name(const char *name, size_t max_bytes, size_t max_component_bytes)
{
	int err = strnlen(name, max_bytes + 1) > max_bytes ? -ENAMETOOLONG : 0;
	while (!err && name) {
		const char *end = strchrnul(name, '/');
		err = check_component(name, (size_t)(end - name), max_component_bytes);
		name = *end ? end + 1 : NULL;
	}
	return err;
}

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

/* is_single() for a store: read the geometry in the buffer's last page. */
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

/* is_single() for a mount: read the statistic `buffers`. A memory file is not opened, because that counts as mapping
 * it. */
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

/* True if the channel was made with buffers=single, so that its one relay file has its own name, without a number. */
static bool is_single(const struct relay_place *place)
{
	return place->in_store ? is_single_in_store(place) : is_single_in_mount(place);
}

/* True if place->channel, "app/cpu10", is the name of a relay file: buffer 0 of the channel app/cpu1, or buffer 10 of
 * app/cpu. The server refuses to make one of these channels while the other exists. Then place->channel and place->cpu
 * are set to the channel and the buffer. */
static bool has_numbered_mem(struct relay_place *place)
{
	size_t length = strlen(place->channel);
	for (size_t cut = length; cut > 1 && place->channel[cut - 1] >= '0' && place->channel[cut - 1] <= '9'; cut--) {
		if (length - cut >= 6 || (place->channel[cut - 1] == '0' && cut < length))
			continue; /* a number of more than six digits, or one that begins with 0 */
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

/* Fill `place`, which owns `root` from then on. 0; -ENOMEM, also if root is NULL. */
static int place_at(struct relay_place *place, char *root, bool in_store, const char *channel)
{
	*place = (struct relay_place){.root = root, .in_store = in_store, .channel = strdup(channel)};
	if (place->root && place->channel)
		return 0;
	relay_place_free(place);
	return -ENOMEM;
}

/* Try each directory in the path as the mountpoint, the longest first, until fits() is true. */
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
	/* The whole path is below the working directory, or below the root directory. */
	int err = place_at(place, strdup(path[0] == '/' ? "/" : "."), false, path + (path[0] == '/'));
	if (err || fits(place))
		return err;
	relay_place_free(place);
	return -ENOENT;
}

/* Return the rest of `path` after the directory `root` and the slash. NULL: path is not below root. */
static const char *path_below(const char *root, const char *path)
{
	size_t length = root ? strlen(root) : 0;
	while (length > 1 && root[length - 1] == '/')
		length--;
	if (length == 0 || strncmp(path, root, length) != 0 || path[length] != '/')
		return NULL;
	path += length + strspn(path + length, "/");
	return *path ? path : NULL;
}

/* Find a path below $RELAYFS, at which nothing is mounted, or below the default store. */
static int find_in_store(struct relay_place *place, const char *path, bool (*fits)(struct relay_place *))
{
	char store[PATH_MAX];
	int err = relay_default_store(store);
	if (err)
		return err;
	const char *channel = path_below(getenv("RELAYFS"), path);
	if (!channel)
		channel = path_below(store, path);
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

/* True if the path is that of a directory in a mount. */
static bool is_directory(const char *path)
{
	struct relay_place place;
	struct stat st;
	if (stat(path, &st) || !S_ISDIR(st.st_mode) || find_mount(&place, path, is_new))
		return false;
	relay_place_free(&place);
	return true;
}

/* As find(), for a channel or relay file that must exist. */
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
