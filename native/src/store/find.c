/* SPDX-License-Identifier: MIT */
/*
 * The mount MNT and the store STORE of one server are found from each other:
 *
 *     MNT/.traces/control      its extended attribute user.relayfs.backing is "STORE/.traces"
 *     STORE/.lock              its text is "process PID, mounted at MNT"; locked by flock(2) while the server runs, and
 *                              left behind when the server ends
 *
 * Mounts are found in /proc/self/mountinfo.
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

enum { MOUNTS_STEP = 4096 };

const char *relay_named_by(const char *variable)
{
	const char *value = getenv(variable);
	return value && *value ? value : NULL;
}

bool relay_has_control(const char *root, int how)
{
	char *path;
	/* Through .channels, because a directory that is no relayfs may contain a file `control`, too. */
	if (asprintf(&path, "%s/.channels/../control", root) < 0)
		return false;
	bool has = access(path, how) == 0;
	free(path);
	return has;
}

/* True if uid is mapped in this process's user namespace. All users without a mapping appear there with one and the
 * same uid, which therefore does not identify a user. *outside receives the uid in the parent namespace. */
static bool is_mapped(uid_t uid, uid_t *outside)
{
	unsigned first, first_outside, n;
	bool found = false;
	*outside = uid;
	FILE *map = fopen("/proc/self/uid_map", "re");
	if (!map)
		return errno == ENOENT; /* a kernel without user namespaces */
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
	return S_ISDIR(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & RELAY_PERM_STRANGERS) &&
	       is_mapped(st.st_uid, &unused);
}

int relay_store_make(const char *store)
{
	if (mkdir(store, RELAY_PERM_STORE) == 0)
		return chmod(store, RELAY_PERM_STORE) ? -errno : 0; /* whatever the umask is */
	if (errno != EEXIST)
		return -errno;
	/* Every user may write to /dev/shm, so another user may have made this directory. */
	return relay_store_is_trusted(store) ? 0 : -EACCES;
}

/* Decode, in place, the octal escapes of mountinfo for blanks and backslashes: "/mnt/my\040relay". Returns `word`. */
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

/* True if the server of a line of mountinfo belongs to root or to this user. `user_id=` is the server's uid in the user
 * namespace in which it mounted: this process's namespace or its parent. It is in the last field, the options; the field
 * before is any text that the server's user has chosen. */
static bool is_server_trusted(const char *line)
{
	static const char key[] = ",user_id=";
	const char *user = strstr(strrchr(line, ' '), key);
	unsigned long uid = user ? strtoul(user + sizeof(key) - 1, NULL, 10) : 0;
	uid_t outside;
	return uid == 0 || (is_mapped(geteuid(), &outside) && (uid == geteuid() || uid == outside));
}

/* Return the mountpoint in a line of mountinfo, which is changed, and in *device the file system's st_dev. NULL: the
 * line is not that of a relayfs, or its server is not trusted. */
static char *mountpoint_in(char *line, dev_t *device)
{
	char *type = strstr(line, " - "), *word = line;
	unsigned major_number, minor_number;
	if (!type || sscanf(line, "%*u %*u %u:%u", &major_number, &minor_number) != 2)
		return NULL;
	*device = makedev(major_number, minor_number);
	bool ours = strncmp(type, " - fuse.relayfs ", 16) == 0 || strncmp(type, " - fuse relayfs ", 16) == 0;
	ours = ours && is_server_trusted(line);
	for (int i = 0; i < 4; i++) {
		word = strchr(word, ' ');
		if (!word)
			return NULL;
		word++;
	}
	word[strcspn(word, " ")] = 0;
	return ours ? unescape(word) : NULL;
}

/* Return the text of /proc/self/mountinfo, to be freed. NULL: the file cannot be read, or no memory. */
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

/* read_mounts() closes its file before fits() is called, because fits() may need this process's last free
 * descriptor. */
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

static bool copy_mountpoint(const char *mountpoint, void *arg)
{
	*(char **)arg = strdup(mountpoint);
	return true;
}

static bool copy_if_writable(const char *mountpoint, void *arg)
{
	return relay_has_control(mountpoint, W_OK) && copy_mountpoint(mountpoint, arg);
}

/* Return $RELAYFS, else the first mountpoint that `fits` copies, to be freed. NULL: neither exists, or no memory. */
static char *first_mount(relay_mount_fits *fits)
{
	const char *named = relay_named_by("RELAYFS");
	char *found = named ? strdup(named) : NULL;
	if (!named)
		relay_each_mount(NULL, fits, &found);
	return found;
}

/* `to` has PATH_MAX bytes. 0 or -ENAMETOOLONG. */
static int copy_path(char *to, const char *path)
{
	size_t length = strnlen(path, PATH_MAX);
	if (length == PATH_MAX)
		return -ENAMETOOLONG;
	memcpy(to, path, length + 1);
	return 0;
}

int relay_find_mount(char *mount)
{
	char *found = first_mount(copy_mountpoint);
	int err = found ? copy_path(mount, found) : -ENOENT;
	free(found);
	return err;
}

char *relay_default_root(void)
{
	char store[PATH_MAX], *found = first_mount(copy_if_writable);
	return found || relay_default_store(store) ? found : strdup(store);
}

int relay_default_store(char *store)
{
	const char *named = relay_named_by("RELAYFS_STORE");
	if (named)
		return copy_path(store, named);
	if (geteuid() == 0)
		return copy_path(store, "/dev/shm/relayfs");
	snprintf(store, PATH_MAX, "/dev/shm/relayfs-%u", (unsigned)geteuid());
	return 0;
}

/* Find the store: relay_backing_file() of the file MNT`shown` returns the path STORE`stored`. 0; -ENODATA: the path does
 * not end in `stored`; or as relay_backing_file(). */
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
	/* A server whose control file of traces is damaged runs without .traces/control. */
	return err == -ENOENT ? find_store_behind(mount, "/counters", "/.counters/counters", store) : err;
}

/* Return the mountpoint that the store's server, or its last one, has written to STORE/.lock, to be freed. NULL: there
 * is none, or no memory. *is_served is set if .lock can be opened: true if the server runs. */
static char *mountpoint_in_lock(const char *store, bool *is_served)
{
	static const char before[] = "mounted at ";
	char *name, text[8192];
	if (asprintf(&name, "%s/.lock", store) < 0)
		return NULL;
	int fd = open(name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	free(name);
	if (fd < 0)
		return NULL;
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
	char *at = mountpoint_in_lock(store, &is_served);
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
	char *at = mountpoint_in_lock(store, &is_served);
	size_t length = strlen(mount);
	while (length > 1 && mount[length - 1] == '/')
		length--;
	bool is_meant = at && strlen(at) == length && memcmp(at, mount, length) == 0;
	free(at);
	return is_meant;
}
