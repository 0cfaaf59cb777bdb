/* SPDX-License-Identifier: MIT */
/*
 * The kernel's create_buf_file makes a file of any name anywhere. Here all files of a channel are made at once, so
 * the callback only names them, and the names must be those of one channel: DIR/BASE0 .. DIR/BASEN-1.
 */
#define _GNU_SOURCE
#include "channel/create_buf_file.h"

#include "channel/direct.h"
#include "store/find.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The channel whose remove_buf_file is being called in this thread although its files do not exist; else NULL. */
static __thread const struct rchan *without_files;

char *relay_name_below(const char *parent, const char *name)
{
	char *root = parent ? NULL : relay_default_root(), *path;
	const char *above = parent ? parent : root;
	size_t length = above ? strlen(above) : 0;
	const char *slash = length && above[length - 1] == '/' ? "" : "/";
	int n = above && *above ? asprintf(&path, "%s%s%s", above, slash, name) : -1;
	free(root);
	return n < 0 ? NULL : path;
}

static int remember(struct relay_name *name, const char *path, int mode)
{
	char *copy = strdup(path);
	if (!copy)
		return -ENOMEM;
	free(name->path);
	*name = (struct relay_name){.path = copy, .mode = mode};
	return 0;
}

const char *relay_create_file(const char *filename, const char *parent, int mode, struct rchan_buf *buf)
{
	struct rchan *chan = buf ? buf->chan : NULL;
	if (!chan || !chan->names || !filename || !*filename || mode & ~RELAY_PERM_BUFFER_MOST) {
		errno = EINVAL;
		return NULL;
	}
	struct relay_name *name = &chan->names[buf - chan->bufs];
	free(name->path);
	*name = (struct relay_name){.path = relay_name_below(parent, filename), .mode = mode};
	if (!name->path)
		errno = ENOMEM;
	return name->path;
}

static bool is_named(const struct rchan *chan, const char *file)
{
	for (uint32_t i = 0; i < chan->n_names; i++)
		if (strcmp(chan->names[i].path, file) == 0)
			return true;
	return false;
}

int relay_remove_file(const char *file)
{
	struct relay_place place = {0};
	if (!file)
		return -EINVAL;
	/* A file of this name belongs to another channel. */
	if (without_files && is_named(without_files, file))
		return 0;
	int err = relay_place_file(&place, file);
	if (err == -ENOENT)
		return 0;
	if (!err && place.in_store)
		err = relay_direct_remove(&place);
	else if (!err)
		err = relay_place_control(&place, "remove", "");
	relay_place_free(&place);
	return err == -ENOENT ? 0 : err;
}

/* Call create_buf_file for one buffer. *global is set if the callback wants one buffer for all CPUs. */
static int ask(struct rchan *chan, const char *base_filename, const char *parent, uint32_t i, int *global)
{
	char *filename;
	if (asprintf(&filename, "%s%u", base_filename, i) < 0)
		return -ENOMEM;
	errno = 0;
	const char *file = chan->cb->create_buf_file(filename, parent, RELAY_PERM_CALLBACK, &chan->bufs[i], global);
	int err = file ? 0 : errno ? -errno : -EACCES;
	struct relay_name *name = &chan->names[i];
	if (!err && file != name->path)
		err = remember(name, file, RELAY_PERM_CALLBACK);
	chan->n_names += !err;
	free(filename);
	return err;
}

static int ask_all(struct rchan *chan, const char *base_filename, const char *parent, uint32_t n, int *global)
{
	chan->names = calloc(chan->n_places, sizeof(*chan->names));
	int err = chan->names ? 0 : -ENOMEM;
	for (uint32_t i = 0; !err && i < n; i++) {
		err = ask(chan, base_filename, parent, i, global);
		if (!err && *global)
			return i ? -EINVAL : 0;
	}
	return err;
}

/* Return the path without the number at its end ("app/cpu0" -> "app/cpu"); NULL: it does not end with the number. */
static char *without_number(const char *path, uint32_t number)
{
	char digits[16];
	size_t n = (size_t)snprintf(digits, sizeof(digits), "%u", number), length = strlen(path);
	if (length <= n || strcmp(path + length - n, digits) != 0 || path[length - n - 1] == '/')
		return NULL;
	return strndup(path, length - n);
}

static int channel_of(const struct rchan *chan, bool global, char **path, uint32_t *buffers)
{
	const struct relay_name *names = chan->names;
	*path = without_number(names[0].path, 0);
	*buffers = !global ? RELAY_PERCPU : *path ? RELAY_GLOBAL : RELAY_SINGLE;
	if (global && !*path)
		*path = strdup(names[0].path);
	if (!*path)
		return -EINVAL;
	for (uint32_t i = 1; i < chan->n_names; i++) {
		char *same = without_number(names[i].path, i);
		bool differs = !same || strcmp(same, *path) != 0 || names[i].mode != names[0].mode;
		free(same);
		if (differs)
			return -EINVAL;
	}
	return 0;
}

int relay_create_buf_file_ask(struct rchan *chan, const char *base_filename, const char *parent, uint32_t n,
                              char **path, uint32_t *buffers)
{
	*path = NULL;
	*buffers = RELAY_PERCPU;
	if (!chan->cb || !chan->cb->create_buf_file) {
		*path = relay_name_below(parent, base_filename);
		return *path ? 0 : parent && !*parent ? -ENOENT : -ENOMEM;
	}
	/* As in the kernel, a channel that has been global stays global. */
	int global = chan->n_buffers && chan->spec.buffers != RELAY_PERCPU;
	int err = ask_all(chan, base_filename, parent, n, &global);
	if (!err)
		err = channel_of(chan, global, path, buffers);
	if (err) {
		free(*path);
		*path = NULL;
		relay_create_buf_file_remove(chan, false);
	}
	return err;
}

int relay_create_buf_file_ask_global(struct rchan *chan)
{
	int global = 0;
	if (!chan->cb || !chan->cb->create_buf_file)
		return 0;
	if (chan->cb->create_buf_file(NULL, NULL, RELAY_PERM_CALLBACK, &chan->bufs[0], &global))
		return -EINVAL;
	return global != 0;
}

void relay_create_buf_file_remove(struct rchan *chan, bool exist)
{
	without_files = exist ? NULL : chan;
	for (uint32_t i = 0; i < chan->n_names; i++)
		if (chan->cb && chan->cb->remove_buf_file)
			chan->cb->remove_buf_file(chan->names[i].path);
	without_files = NULL;
	for (uint32_t i = 0; chan->names && i < chan->n_places; i++)
		free(chan->names[i].path);
	free(chan->names);
	chan->names = NULL;
	chan->n_names = 0;
}
