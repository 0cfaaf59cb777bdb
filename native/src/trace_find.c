/* SPDX-License-Identifier: MIT */
/*
 *     MNT/.traces/control      its extended attribute user.relayfs.backing is "STORE/.traces"
 *
 * Whoever may write the control file says what this program does: it must be root's, or this user's.
 */
#define _GNU_SOURCE
#include "trace_find.h"

#include "mountpoint.h"

#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

static const char control_name[] = "/.traces";

/* The control file of a store, if it is to be trusted. -1: it is not, or there is none. */
static int open_control(const char *store)
{
	struct stat st;
	char *name;
	if (asprintf(&name, "%s%s", store, control_name) < 0)
		return -1;
	int fd = open(name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	free(name);
	if (fd < 0 || (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && (st.st_uid == 0 || st.st_uid == geteuid())))
		return fd;
	close(fd);
	return -1;
}

/* The store behind a mount, or NULL. */
static char *store_of(const char *mountpoint)
{
	char *name, backing[PATH_MAX];
	if (asprintf(&name, "%s/.traces/control", mountpoint) < 0)
		return NULL;
	ssize_t length = getxattr(name, "user.relayfs.backing", backing, sizeof(backing) - 1);
	free(name);
	ssize_t store_length = length - (ssize_t)(sizeof(control_name) - 1);
	if (store_length <= 0)
		return NULL;
	backing[length] = 0;
	return strcmp(backing + store_length, control_name) == 0 ? strndup(backing, (size_t)store_length) : NULL;
}

struct search {
	const char *store; /* which store's mount; NULL: any */
	char *found;       /* the mount, or the store */
	int *fd;
};

static bool try_store(struct search *search, char *store)
{
	*search->fd = store ? open_control(store) : -1;
	if (*search->fd < 0)
		free(store);
	else
		search->found = store;
	return *search->fd >= 0;
}

static bool try_mount(const char *mountpoint, void *arg)
{
	struct search *search = arg;
	char *store = store_of(mountpoint);
	if (!search->store)
		return try_store(search, store);
	if (store && strcmp(store, search->store) == 0)
		search->found = strdup(mountpoint);
	free(store);
	return search->found != NULL;
}

char *relay_trace_find_store(int *fd)
{
	struct search search = {.fd = fd};
	const char *named = getenv("RELAYFS");
	if (named && *named) {
		if (!try_mount(named, &search))
			try_store(&search, relay_default_store());
		return search.found;
	}
	if (!try_store(&search, relay_default_store()) && !try_store(&search, strdup("/dev/shm/relayfs")))
		relay_each_mount(try_mount, &search);
	return search.found;
}

char *relay_trace_find_mount(const char *store)
{
	struct search search = {.store = store};
	const char *named = getenv("RELAYFS");
	if (!named || !*named || !try_mount(named, &search))
		relay_each_mount(try_mount, &search);
	return search.found;
}
