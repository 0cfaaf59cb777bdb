/* SPDX-License-Identifier: MIT */
/*
 * The server, which writes the control file, decides which events this process writes. So the mount has to be root's or
 * this user's. Files in a store are opened by the store's owner only; processes of other users open them through the
 * mount.
 */
#define _GNU_SOURCE
#include "trace/find.h"

#include "base/mapping.h"
#include "store/find.h"
#include "trace/control_file.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

void relay_trace_home_free(struct relay_trace_home *home)
{
	free(home->store);
	free(home->mount);
	*home = (struct relay_trace_home){0};
}

static struct relay_traces *open_below(const char *root, const char *name)
{
	char *path;
	if (asprintf(&path, "%s%s", root, name) < 0)
		return NULL;
	struct relay_traces *traces = relay_traces_open(path);
	free(path);
	return traces;
}

uint32_t relay_trace_pid(const struct relay_trace_home *home)
{
	char *name, text[16];
	uint64_t own = relay_pid_ns();
	bool is_other = own && home->pid_ns && own != home->pid_ns && home->mount;
	if (!is_other || asprintf(&name, "%s/.traces/control", home->mount) < 0)
		return (uint32_t)getpid();
	ssize_t length = getxattr(name, "user.relayfs.pid", text, sizeof(text) - 1);
	free(name);
	text[length > 0 ? length : 0] = 0;
	unsigned long pid = strtoul(text, NULL, 10);
	return pid && pid <= UINT32_MAX ? (uint32_t)pid : (uint32_t)getpid();
}

struct search {
	struct relay_trace_home *home;
	struct relay_traces *traces; /* NULL: no control file found */
};

/* The store's owner opens the files in the store, because those of the mount fail when the server has ended. */
static bool try_mount(const char *mountpoint, void *arg)
{
	struct search *search = arg;
	char store[PATH_MAX];
	bool is_own = relay_find_store(mountpoint, store) == 0 && relay_store_is_trusted(store);
	search->traces = is_own ? open_below(store, "/.traces") : NULL;
	is_own = search->traces;
	if (!search->traces)
		search->traces = open_below(mountpoint, "/.traces/control");
	if (!search->traces)
		return false;
	*search->home = (struct relay_trace_home){.store = is_own ? strdup(store) : NULL, .mount = strdup(mountpoint)};
	return true;
}

static void try_own_store(struct search *search)
{
	char store[PATH_MAX];
	if (relay_default_store(store) == 0 && relay_store_is_trusted(store) && relay_default_store_is_meant(store))
		search->traces = open_below(store, "/.traces");
	if (search->traces)
		*search->home =
		    (struct relay_trace_home){.store = strdup(store), .mount = relay_store_mountpoint(store)};
}

/* relay_each_mount() finds the mount $RELAYFS by its device number, because several paths may lead to it. */
bool relay_trace_find(struct relay_trace_home *home, struct relay_traces **traces)
{
	struct search search = {.home = home};
	relay_each_mount(relay_named_by("RELAYFS"), try_mount, &search);
	if (!search.traces)
		try_own_store(&search);
	if (search.traces)
		home->pid_ns = relay_traces_pid_ns(search.traces);
	*traces = search.traces;
	return search.traces != NULL;
}
