/* SPDX-License-Identifier: MIT */
/*
 *     STORE/.traces-lost          mapped by programs of the store's own user and root
 *     STORE/.traces-lost-UID      mapped by programs of user UID, as MNT/.traces/lost
 *
 *     |id 64|records 64|id 64|records 64|...      one pair for each slot of the control file
 *
 * Programs have a page mapped from the beginning, because whoever gets no buffers may have no descriptors, no room and no path
 * either, and count there at once, so that a count outlives its program. A user can spoil the counts of that user alone.
 */
#define _GNU_SOURCE
#include "trace/lost.h"

#include "base/immutable.h"
#include "base/mapping.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { USERS_MAX = 1024 };

static const char user_prefix[] = ".traces-lost-", in_mount[] = "/.traces/control";

struct lost {
	uint64_t id;      /* of the trace. Writer: the server */
	uint64_t records; /* Writers: any of the programs, and the server for a new trace */
};

struct relay_lost_page {
	struct lost of[RELAY_N_TRACES];
};

struct user {
	uint32_t uid;
	struct relay_mapping mapping;
	struct user *next;
};

struct relay_lost_users {
	struct user *first;
	unsigned n;
};

RELAY_STATIC_ASSERT(sizeof(struct relay_lost_page) <= RELAY_PAGE_BYTES, "they lie in one page");

/* ------------------------------------------------------------------ one page */

/* fd is closed. NULL: it cannot be mapped, or it is none. */
static struct relay_lost_page *map_fd(int fd)
{
	struct stat st;
	void *page = MAP_FAILED;
	if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size >= RELAY_PAGE_BYTES)
		page = mmap(NULL, RELAY_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (fd >= 0)
		close(fd);
	return page == MAP_FAILED ? NULL : page;
}

/* Its memory is there from the beginning: a store into the mapping never fails. */
static int open_filled(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
	int err = fd < 0 ? -errno : -posix_fallocate(fd, 0, RELAY_PAGE_BYTES);
	if (err && fd >= 0)
		close(fd);
	return err ? err : fd;
}

struct relay_lost_page *relay_lost_map(const char *control, bool makes)
{
	char path[PATH_MAX];
	size_t length = strlen(control), end = length - strlen(in_mount);
	bool is_mount = length > strlen(in_mount) && strcmp(control + end, in_mount) == 0;
	int printed = is_mount ? snprintf(path, sizeof(path), "%.*s/.traces/lost", (int)end, control)
	                       : snprintf(path, sizeof(path), "%s-lost", control);
	if (printed >= (int)sizeof(path))
		return NULL;
	return map_fd(makes ? open_filled(path) : open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
}

void relay_lost_unmap(struct relay_lost_page *page)
{
	if (page)
		munmap(page, RELAY_PAGE_BYTES);
}

void relay_lost_begin(struct relay_lost_page *page, unsigned slot, uint64_t id)
{
	struct lost *lost = page ? &page->of[slot] : NULL;
	if (!lost || !id || __atomic_load_n(&lost->id, __ATOMIC_RELAXED) == id)
		return;
	__atomic_store_n(&lost->records, 0, __ATOMIC_RELAXED);
	/* Pairs with the acquire in find_lost(): the count of this trace after it was set to 0. */
	__atomic_store_n(&lost->id, id, __ATOMIC_RELEASE);
}

static const struct lost *find_lost(const struct relay_lost_page *page, unsigned slot, uint64_t id)
{
	const struct lost *lost = page && slot < RELAY_N_TRACES ? &page->of[slot] : NULL;
	/* Pairs with the release in relay_lost_begin(). */
	return lost && id && __atomic_load_n(&lost->id, __ATOMIC_ACQUIRE) == id ? lost : NULL;
}

bool relay_lost_add(struct relay_lost_page *page, unsigned slot, uint64_t id, uint64_t records)
{
	if (!find_lost(page, slot, id))
		return false;
	/* Relaxed: a count, which nothing else follows from. */
	__atomic_fetch_add(&page->of[slot].records, records, __ATOMIC_RELAXED);
	return true;
}

uint64_t relay_lost_get(const struct relay_lost_page *page, unsigned slot, uint64_t id)
{
	const struct lost *lost = find_lost(page, slot, id);
	/* Relaxed: as in relay_lost_add(). */
	uint64_t records = lost ? __atomic_load_n(&lost->records, __ATOMIC_RELAXED) : 0;
	/* Who takes its part back before another one has added its own leaves less than 0 for a moment; so does nonsense. */
	return records > INT64_MAX ? 0 : records;
}

int relay_traces_lost_in(const char *file, uint64_t ids[RELAY_N_TRACES], uint64_t lost[RELAY_N_TRACES])
{
	struct relay_lost_page page;
	int fd = open(file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	ssize_t got = fd < 0 ? -1 : pread(fd, &page, sizeof(page), 0);
	int err = got == (ssize_t)sizeof(page) ? 0 : got < 0 ? -errno : -EBADMSG;
	if (fd >= 0)
		close(fd);
	for (unsigned slot = 0; !err && slot < RELAY_N_TRACES; slot++) {
		ids[slot] = page.of[slot].id;
		lost[slot] = relay_lost_get(&page, slot, ids[slot]);
	}
	return err;
}

/* ------------------------------------------------------------------ those of all users */

static struct relay_lost_page *lost_page_of(const struct user *user)
{
	return (struct relay_lost_page *)user->mapping.base;
}

/* fd becomes the list's. */
static int add(struct relay_lost_users *users, uint32_t uid, int fd)
{
	struct user *user = calloc(1, sizeof(*user));
	int err = user ? relay_mapping_map(&user->mapping, fd) : -ENOMEM;
	if (err) {
		close(fd);
		free(user);
		return err;
	}
	user->uid = uid;
	user->next = users->first;
	users->first = user;
	users->n++;
	return 0;
}

/* Whose page a file of the store is. false: it is none. */
static bool parse_name(const char *name, uint32_t *uid)
{
	char end;
	size_t length = strlen(user_prefix);
	return strncmp(name, user_prefix, length) == 0 && sscanf(name + length, "%u%c", uid, &end) == 1;
}

struct relay_lost_users *relay_lost_users_open(const char *store)
{
	struct relay_lost_users *users = calloc(1, sizeof(*users));
	DIR *listing = users ? opendir(store) : NULL;
	uint32_t uid;
	for (struct dirent *entry; listing && (entry = readdir(listing));) {
		if (users->n >= USERS_MAX || !parse_name(entry->d_name, &uid))
			continue;
		int fd = relay_file_openat(dirfd(listing), entry->d_name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
		if (fd >= 0)
			add(users, uid, fd);
	}
	if (listing)
		closedir(listing);
	return users;
}

void relay_lost_users_close(struct relay_lost_users *users)
{
	struct user *next;
	for (struct user *user = users ? users->first : NULL; user; user = next) {
		next = user->next;
		relay_mapping_unmap(&user->mapping);
		free(user);
	}
	free(users);
}

void relay_lost_users_begin(struct relay_lost_users *users, unsigned slot, uint64_t id)
{
	for (struct user *user = users ? users->first : NULL; user; user = user->next)
		relay_lost_begin(lost_page_of(user), slot, id);
}

/* A server that is not root makes all of them its own: they are mapped through the mount alone. */
static int make_lost_file(struct relay_lost_users *users, const char *store, uint32_t uid)
{
	char path[PATH_MAX];
	if (snprintf(path, sizeof(path), "%s/%s%u", store, user_prefix, uid) >= (int)sizeof(path))
		return -ENAMETOOLONG;
	int fd = open_filled(path);
	int err = fd < 0 ? fd : geteuid() == 0 ? relay_mapping_own(fd, 0600, uid, getegid()) : 0;
	if (err && fd >= 0)
		close(fd);
	return err ? err : add(users, uid, fd);
}

int relay_lost_users_get(struct relay_lost_users *users, const char *store, uint32_t uid,
                         const uint64_t ids[RELAY_N_TRACES])
{
	struct user *user = users->first;
	while (user && user->uid != uid)
		user = user->next;
	if (user)
		return user->mapping.file.fd;
	int err = users->n >= USERS_MAX ? -ENOSPC : make_lost_file(users, store, uid);
	for (unsigned slot = 0; !err && slot < RELAY_N_TRACES; slot++)
		relay_lost_begin(lost_page_of(users->first), slot, ids[slot]);
	return err ? err : users->first->mapping.file.fd;
}
