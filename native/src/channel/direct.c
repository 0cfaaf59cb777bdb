/* SPDX-License-Identifier: MIT */
/*
 * The rules for names and directories are those of the server (relayfs_fuse/fs/store.py, tree.py), because the next
 * mount shows the channels made here. This process holds the store's lock during a change, so that no server starts
 * meanwhile.
 */
#define _GNU_SOURCE
#include "channel/direct.h"

#include "store/find.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <relayfs/layout.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

enum { NAME_BYTES = 200, PATH_BYTES = 1024 };

/* How long to wait for the lock while another process makes a channel, or a server starts or ends. */
enum { STORE_WAIT_MS = 5000 };

/* A channel to be made. */
struct making {
	uint32_t buffers, n; /* enum relay_buffers, and how many */
	int (*make)(const char *dir, const void *spec);
	const void *spec;
	const int *fds; /* unnamed buffers to adopt, instead of calling make() */
};

/* Neither the channel's path nor those of its relay files may be taken. */
static int check_free(const struct relay_place *place, const struct making *making)
{
	char *file;
	if (relay_place_is_taken(place, place->channel))
		return -EEXIST;
	for (uint32_t i = 0; making->buffers != RELAY_SINGLE && i < making->n; i++) {
		if (asprintf(&file, "%s%u", place->channel, i) < 0)
			return -ENOMEM;
		bool taken = relay_place_is_taken(place, file);
		free(file);
		if (taken)
			return -EEXIST;
	}
	return 0;
}

/* Take the store's lock. Returns its descriptor or -errno. */
static int lock_store(const char *store)
{
	char *name;
	if (asprintf(&name, "%s/.lock", store) < 0)
		return -ENOMEM;
	int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, RELAY_PERM_OWN);
	free(name);
	if (fd < 0)
		return -errno;
	if (flock(fd, LOCK_EX | LOCK_NB)) {
		int err = errno == EWOULDBLOCK ? -EBUSY : -errno;
		close(fd);
		return err;
	}
	return fd;
}

static char *directory_of(const struct relay_place *place, const char *path)
{
	char *dir;
	return asprintf(&dir, "%s/%s", place->root, path) < 0 ? NULL : dir;
}

/* Make one directory above a channel, if it does not exist. -ENOTDIR: a channel or a relay file has this path. */
static int make_directory(const struct relay_place *place, char *path)
{
	struct relay_place above = {.root = place->root, .in_store = true, .channel = path};
	char *mem = relay_place_mem(&above, 0), *dir = directory_of(place, path);
	int err = mem && dir ? 0 : -ENOMEM;
	if (!err && access(mem, F_OK) == 0)
		err = -ENOTDIR;
	if (!err && access(dir, F_OK) != 0)
		err = relay_place_is_taken(place, path) ? -ENOTDIR : relay_implicit_make(dir);
	free(mem);
	free(dir);
	return err;
}

/* Make the missing directories above `path`, outermost first. */
static int make_above(const struct relay_place *place, char *path)
{
	char *slash = strrchr(path, '/');
	if (!slash)
		return 0;
	*slash = 0;
	int err = make_above(place, path);
	if (!err)
		err = make_directory(place, path);
	*slash = '/';
	return err;
}

/* Remove the implicit directories above `path` that are empty, innermost first. */
static void remove_above(const struct relay_place *place, char *path)
{
	bool is_removed = true;
	for (char *slash; is_removed && (slash = strrchr(path, '/'));) {
		*slash = 0;
		char *dir = directory_of(place, path);
		is_removed = dir && relay_implicit_is(dir) && rmdir(dir) == 0;
		free(dir);
	}
}

/* Make the channel. The caller has the store's lock. */
static int make(const struct relay_place *place, const struct making *making)
{
	char *path = strdup(place->channel), *dir = directory_of(place, place->channel);
	int err = path && dir ? check_free(place, making) : -ENOMEM;
	if (!err)
		err = make_above(place, path);
	if (!err)
		err = making->fds ? relay_store_adopt(dir, making->fds, making->n) : making->make(dir, making->spec);
	if (err && path)
		remove_above(place, path);
	free(path);
	free(dir);
	return err;
}

static int make_locked(const struct relay_place *place, const struct making *making)
{
	int err = relay_check_name(place->channel, PATH_BYTES, NAME_BYTES);
	if (!err)
		err = relay_store_make(place->root);
	int lock = err ? err : lock_store(place->root);
	if (lock < 0)
		return lock;
	err = make(place, making);
	close(lock);
	return err;
}

static int make_buffers(const char *dir, const void *spec)
{
	return relay_store_create(dir, spec);
}

static int make_rings(const char *dir, const void *spec)
{
	return relay_ring_create(dir, spec);
}

int relay_direct_create(const struct relay_place *place, const struct relay_spec *spec)
{
	return make_locked(place, &(struct making){spec->buffers, spec->n_buffers, make_buffers, spec, NULL});
}

int relay_direct_create_rings(const struct relay_place *place, const struct relay_ring_spec *spec)
{
	return make_locked(place, &(struct making){spec->buffers, spec->n_rings, make_rings, spec, NULL});
}

int relay_direct_adopt(const struct relay_place *place, const struct relay_spec *spec, const int *fds)
{
	return make_locked(place, &(struct making){spec->buffers, spec->n_buffers, NULL, spec, fds});
}

/* Close a relay buffer or a ring. A damaged file is neither. */
static void close_buffer(const char *mem)
{
	struct rchan_buf *buf = relay_buf_open(mem);
	struct relay_ring *ring = buf ? NULL : relay_ring_open(mem);
	if (buf)
		relay_buf_stop(buf, RELAY_CLOSED, 1);
	if (ring)
		relay_ring_stop(ring, RELAY_CLOSED, 1);
	relay_buf_release(buf);
	relay_ring_close(ring);
}

/* Close the buffers: every write fails from now on, and readers find the end. Returns the number of buffers. */
static uint32_t close_buffers(const struct relay_place *place)
{
	for (uint32_t n = 0;; n++) {
		char *mem = relay_place_mem(place, n);
		bool exists = mem && access(mem, F_OK) == 0;
		if (exists)
			close_buffer(mem);
		free(mem);
		if (!exists)
			return n;
	}
}

int relay_direct_remove(const struct relay_place *place)
{
	char *path = strdup(place->channel), *dir = directory_of(place, place->channel);
	int lock = path && dir ? lock_store(place->root) : -ENOMEM;
	int err = lock < 0 ? lock : 0;
	if (!err) {
		uint32_t n = close_buffers(place);
		err = n ? relay_store_remove(dir, n) : -ENOENT;
		if (!err)
			remove_above(place, path);
		close(lock);
	}
	free(path);
	free(dir);
	return err;
}

int relay_carry_out(struct relay_place *place, const struct relay_operation *operation)
{
	for (int waited = 0;; waited++) {
		relay_place_refresh(place);
		if (!place->in_store)
			return operation->in_mount(place, operation->arg);
		int err = operation->in_store(place, operation->arg);
		if (err != -EBUSY || waited >= STORE_WAIT_MS)
			return err;
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	}
}

int relay_direct_create_unnamed(const struct relay_spec *spec, int *fds)
{
	char dir[PATH_MAX], *slash;
	int err = relay_default_store(dir);
	if (err)
		return err;
	/* If no file can be made in the default store, use a directory above it: in another file system than the
	 * store's, the channel works but cannot get names. */
	while ((err = relay_store_create_unnamed(dir, spec, fds)) == -ENOENT || err == -EACCES || err == -EPERM) {
		slash = strrchr(dir, '/');
		if (!slash || slash == dir)
			break;
		*slash = 0;
	}
	return err;
}
