/* SPDX-License-Identifier: MIT */
/*
 *     MNT/.traces/control      its extended attribute user.relayfs.backing is "STORE/.traces"
 *     STORE/.lock              its text says where the server is, or was, mounted; a server that lives has it locked
 */
#define _GNU_SOURCE
#include "store/find.h"

#include "base/mapping.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { MOUNTS_STEP = 4096, STORE_MODE = 0700 };

const char *relay_named_by(const char *variable)
{
	const char *value = getenv(variable);
	return value && *value ? value : NULL;
}

bool relay_has_control(const char *root, int how)
{
	char *path;
	if (asprintf(&path, "%s/.channels/../control", root) < 0)
		return false;
	bool has = access(path, how) == 0;
	free(path);
	return has;
}

/* Has this user a number in this user namespace? All who have none look like one user there. *outside: its number where the
 * namespace was made. */
static bool is_mapped(uid_t uid, uid_t *outside)
{
	unsigned first, first_outside, n;
	bool found = false;
	*outside = uid;
	FILE *map = fopen("/proc/self/uid_map", "re");
	if (!map)
		return errno == ENOENT; /* there are no user namespaces */
	while (!found && fscanf(map, "%u %u %u", &first, &first_outside, &n) == 3) {
		found = uid >= first && uid - first < n;
		*outside = found ? first_outside + (uid - first) : uid;
	}
	fclose(map);
	return found;
}

bool relay_store_is_trusted(const char *store)
{
	uid_t unused;
	struct stat st;
	if (lstat(store, &st))
		return errno == ENOENT;
	return S_ISDIR(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & 022) && is_mapped(st.st_uid, &unused);
}

int relay_store_make(const char *store)
{
	/* Only its own user opens a store's files. */
	if (mkdir(store, STORE_MODE) == 0)
		return chmod(store, STORE_MODE) ? -errno : 0; /* whatever the umask is */
	if (errno != EEXIST)
		return -errno;
	/* /dev/shm is everybody's: somebody else may have made it just now. */
	return relay_store_is_trusted(store) ? 0 : -EACCES;
}

/* "/mnt/my\040relay" as mountinfo writes it: blanks and backslashes in octal. In place. */
static char *unescape(char *word)
{
	char *to = word;
	for (const char *from = word; *from; to++)
		if (from[0] == '\\' && from[1] && from[2] && from[3]) {
			*to = (char)((from[1] - '0') << 6 | (from[2] - '0') << 3 | (from[3] - '0'));
			from += 4;
		} else {
			*to = *from++;
		}
	*to = 0;
	return word;
}

/* Does its server belong to root or to this user? Another's could keep us waiting for ever. The kernel shows the user by the
 * number in the user namespace in which the server mounted, which is this one or the one where this one was made. */
static bool is_trusted(const char *options)
{
	static const char key[] = "user_id=";
	const char *user = strstr(options, key);
	unsigned long uid = user ? strtoul(user + sizeof(key) - 1, NULL, 10) : 0;
	uid_t outside;
	return uid == 0 || (is_mapped(geteuid(), &outside) && (uid == geteuid() || uid == outside));
}

/* The mountpoint that a line of mountinfo tells of, inside the line; NULL: it is no relayfs, or not to be trusted. */
static char *mountpoint_in(char *line, dev_t *device)
{
	char *type = strstr(line, " - "), *word = line;
	unsigned major_number, minor_number;
	if (!type || sscanf(line, "%*u %*u %u:%u", &major_number, &minor_number) != 2)
		return NULL;
	*device = makedev(major_number, minor_number);
	bool ours = strncmp(type, " - fuse.relayfs ", 16) == 0 || strncmp(type, " - fuse relayfs ", 16) == 0;
	ours = ours && is_trusted(type);
	for (int i = 0; i < 4; i++) {
		word = strchr(word, ' ');
		if (!word)
			return NULL;
		word++;
	}
	word[strcspn(word, " ")] = 0;
	return ours ? unescape(word) : NULL;
}

/* All of /proc/self/mountinfo; NULL: it cannot be read. */
static char *read_mounts(void)
{
	size_t size = 0, length = 0;
	ssize_t got = 1;
	char *text = NULL;
	int fd = open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);
	while (fd >= 0 && got > 0) {
		if (size - length < MOUNTS_STEP) {
			char *more = realloc(text, size += 2 * MOUNTS_STEP);
			if (!more)
				break;
			text = more;
		}
		got = read(fd, text + length, size - length - 1);
		length += got > 0 ? (size_t)got : 0;
	}
	if (fd >= 0)
		close(fd);
	if (got == 0)
		text[length] = 0;
	else
		free(text);
	return got == 0 ? text : NULL;
}

/* The file is closed before anybody looks at a mount, for which the process may have one descriptor left. */
void relay_each_mount(const char *only, relay_mount_fits *fits, void *arg)
{
	struct stat st;
	if (only && stat(only, &st))
		return;
	char *text = read_mounts(), *next = text, *line;
	bool found = false;
	while (!found && next && (line = strsep(&next, "\n"))) {
		dev_t device;
		const char *mountpoint = mountpoint_in(line, &device);
		found = mountpoint && (!only || device == st.st_dev) && fits(mountpoint, arg);
	}
	free(text);
}

static bool take(const char *mountpoint, void *arg)
{
	*(char **)arg = strdup(mountpoint);
	return true;
}

static bool take_writable(const char *mountpoint, void *arg)
{
	return relay_has_control(mountpoint, W_OK) && take(mountpoint, arg);
}

/* $RELAYFS, else the first mount that fits; NULL: there is none. */
static char *first_mount(relay_mount_fits *fits)
{
	const char *named = relay_named_by("RELAYFS");
	char *found = named ? strdup(named) : NULL;
	if (!named)
		relay_each_mount(NULL, fits, &found);
	return found;
}

static int put_path(char *to, const char *path)
{
	size_t length = strnlen(path, PATH_MAX);
	if (length == PATH_MAX)
		return -ENAMETOOLONG;
	memcpy(to, path, length + 1);
	return 0;
}

int relay_find_mount(char *mount)
{
	char *found = first_mount(take);
	int err = found ? put_path(mount, found) : -ENOENT;
	free(found);
	return err;
}

char *relay_default_root(void)
{
	char store[PATH_MAX], *found = first_mount(take_writable);
	return found || relay_default_store(store) ? found : strdup(store);
}

int relay_default_store(char *store)
{
	const char *named = relay_named_by("RELAYFS_STORE");
	if (named)
		return put_path(store, named);
	if (geteuid() == 0)
		return put_path(store, "/dev/shm/relayfs");
	snprintf(store, PATH_MAX, "/dev/shm/relayfs-%u", (unsigned)geteuid());
	return 0;
}

/* Store the store of a mount, as the file `shown` in the mount tells it, which is `stored` in the store. */
static int find_store_behind(const char *mount, const char *shown, const char *stored, char *store)
{
	char *name;
	if (asprintf(&name, "%s%s", mount, shown) < 0)
		return -ENOMEM;
	int err = relay_backing_file(name, store);
	free(name);
	if (err)
		return err;
	size_t length = strlen(store), rest = strlen(stored);
	if (length <= rest || strcmp(store + length - rest, stored) != 0)
		return -ENODATA;
	store[length - rest] = 0;
	return 0;
}

int relay_find_store(const char *mount, char *store)
{
	int err = find_store_behind(mount, "/.traces/control", "/.traces", store);
	/* A server that cannot use its traces goes on without. */
	return err == -ENOENT ? find_store_behind(mount, "/counters", "/.counters/counters", store) : err;
}

/* Where the store's server says, or said when it ended, that it is mounted; NULL: nowhere. *is_served: it lives. */
static char *signed_mountpoint(const char *store, bool *is_served)
{
	static const char before[] = "mounted at ";
	char *name, text[8192];
	if (asprintf(&name, "%s/.lock", store) < 0)
		return NULL;
	int fd = open(name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	free(name);
	if (fd < 0)
		return NULL;
	/* Its server holds it as long as it lives; what it wrote stays when it is gone. */
	*is_served = flock(fd, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK;
	ssize_t got = read(fd, text, sizeof(text) - 1);
	close(fd);
	text[got > 0 ? got : 0] = 0;
	char *at = strstr(text, before);
	if (!at)
		return NULL;
	at += strlen(before);
	at[strcspn(at, "\n")] = 0;
	return strdup(at);
}

char *relay_store_mountpoint(const char *store)
{
	bool is_served = false;
	char *at = signed_mountpoint(store, &is_served);
	if (at && is_served && relay_has_control(at, F_OK))
		return at;
	free(at);
	return NULL;
}

bool relay_default_store_is_meant(const char *store)
{
	const char *mount = relay_named_by("RELAYFS");
	if (!mount || relay_named_by("RELAYFS_STORE"))
		return true;
	bool is_served = false;
	char *at = signed_mountpoint(store, &is_served);
	size_t length = strlen(mount);
	while (length > 1 && mount[length - 1] == '/')
		length--;
	bool is_meant = at && strlen(at) == length && memcmp(at, mount, length) == 0;
	free(at);
	return is_meant;
}
