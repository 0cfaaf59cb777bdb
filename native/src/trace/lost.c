/* SPDX-License-Identifier: MIT */
/*
 *     STORE/.traces-lost          mapped by programs of the store's owner and of root
 *     STORE/.traces-lost-UID      mapped, as MNT/.traces/lost, by programs of user UID
 *
 *     |id 64|records 64|id 64|records 64|...      one pair for each slot of the control file
 *
 * A program maps its page when it maps the control file, because a program that cannot get buffers may be short of
 * descriptors or memory as well. It counts each event at once, so that the count remains when the program ends. A user
 * can store wrong counts only for that user's own programs.
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

enum { USERS_MAX = 1024 }; /* pages of other users */

static const char user_prefix[] = ".traces-lost-", in_mount[] = "/.traces/control";

struct lost {
	uint64_t id;      /* of the trace. Writer: the server */
	uint64_t records; /* Writers: programs of the page's users; the server when a trace is made */
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

RELAY_STATIC_ASSERT(sizeof(struct relay_lost_page) <= RELAY_PAGE_BYTES, "one page is mapped");

/* ------------------------------------------------------------------ one page */

/* Map a page and close fd. NULL: fd is negative, its file is too short, or it cannot be mapped. */
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

/* Open a page, made if it does not exist, and allocate its memory, so that no store to the mapping raises SIGBUS.
 * Returns its descriptor or -errno. */
static int open_filled(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, RELAY_PERM_OWN);
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
	/* Relaxed: only this process stores `id`. */
	if (!lost || !id || __atomic_load_n(&lost->id, __ATOMIC_RELAXED) == id)
		return;
	__atomic_store_n(&lost->records, 0, __ATOMIC_RELAXED);
	/* Pairs with the acquire in find_lost(): the count is 0 before a program adds to it for this id. */
	__atomic_store_n(&lost->id, id, __ATOMIC_RELEASE);
}

/* Return the count of a trace. NULL: the page has none. */
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
	/* Relaxed: no other memory depends on the count. */
	__atomic_fetch_add(&page->of[slot].records, records, __ATOMIC_RELAXED);
	return true;
}

uint64_t relay_lost_get(const struct relay_lost_page *page, unsigned slot, uint64_t id)
{
	const struct lost *lost = find_lost(page, slot, id);
	/* Relaxed: as in relay_lost_add(). */
	uint64_t records = lost ? __atomic_load_n(&lost->records, __ATOMIC_RELAXED) : 0;
	/* The count is below 0 if programs have subtracted more than they have added since relay_lost_begin(), which a
	 * program can do by mistake or on purpose. */
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

/* ------------------------------------------------------------------ pages of other users */

static struct relay_lost_page *lost_page_of(const struct user *user)
{
	return (struct relay_lost_page *)user->mapping.base;
}

/* Map a user's page. fd then belongs to the list; it is closed on failure. 0 or -errno. */
static int add_user(struct relay_lost_users *users, uint32_t uid, int fd)
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

/* Get the user from the name of a file in the store. false: the file is not a page. */
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
			add_user(users, uid, fd);
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

/* Only root can give the file to its user. A server of another user keeps the file; programs map it through the
 * mount. */
static int make_lost_file(struct relay_lost_users *users, const char *store, uint32_t uid)
{
	char path[PATH_MAX];
	if (snprintf(path, sizeof(path), "%s/%s%u", store, user_prefix, uid) >= (int)sizeof(path))
		return -ENAMETOOLONG;
	int fd = open_filled(path);
	int err = fd < 0 ? fd : geteuid() == 0 ? relay_mapping_own(fd, RELAY_PERM_OWN, uid, getegid()) : 0;
	if (err && fd >= 0)
		close(fd);
	return err ? err : add_user(users, uid, fd);
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
