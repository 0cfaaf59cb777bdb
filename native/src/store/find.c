/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "store/find.h"

#include "base/mapping.h"

#include <errno.h>
#include <fcntl.h>
#include <relayfs/layout.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { MOUNTS_STEP = 4096 };

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

/* Is a relayfs mounted at `root`, and may its control be used so (F_OK, W_OK)? */
static bool has_control(const char *root, int how)
{
	char *path;
	if (asprintf(&path, "%s/.channels/../control", root) < 0)
		return false;
	bool has = access(path, how) == 0;
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
	return place->in_store || has_control(place->root, F_OK);
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

/* Below $RELAYFS, at which nothing is mounted, or below the default store. */
static int find_in_store(struct relay_place *place, const char *path, bool (*fits)(struct relay_place *))
{
	char *store = relay_default_store();
	if (!store)
		return -ENOMEM;
	const char *channel = below(getenv("RELAYFS"), path);
	if (!channel)
		channel = below(store, path);
	if (!channel || !relay_store_is_trusted(store)) {
		free(store);
		return channel ? -EACCES : -ENOENT;
	}
	char *mountpoint = relay_store_mountpoint(store);
	if (mountpoint)
		free(store);
	int err = place_at(place, mountpoint ? mountpoint : store, !mountpoint, channel);
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
void relay_each_mount(relay_mount_fits *fits, void *arg)
{
	char *text = read_mounts(), *next = text, *line;
	bool found = false;
	while (!found && next && (line = strsep(&next, "\n"))) {
		dev_t device;
		const char *mountpoint = mountpoint_in(line, &device);
		found = mountpoint && fits(mountpoint, device, arg);
	}
	free(text);
}

static bool is_writable(const char *mountpoint, dev_t device, void *arg)
{
	(void)device;
	if (!has_control(mountpoint, W_OK))
		return false;
	*(char **)arg = strdup(mountpoint);
	return true;
}

static char *first_mount(void)
{
	char *found = NULL;
	relay_each_mount(is_writable, &found);
	return found;
}

char *relay_default_root(void)
{
	const char *named = getenv("RELAYFS");
	if (named && *named)
		return strdup(named);
	char *found = first_mount();
	return found ? found : relay_default_store();
}

char *relay_default_store(void)
{
	const char *named = getenv("RELAYFS_STORE");
	char *path;
	if (named && *named)
		return strdup(named);
	if (geteuid() == 0)
		return strdup("/dev/shm/relayfs");
	return asprintf(&path, "/dev/shm/relayfs-%u", (unsigned)geteuid()) < 0 ? NULL : path;
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
	if (at && is_served && has_control(at, F_OK))
		return at;
	free(at);
	return NULL;
}

bool relay_default_store_is_meant(const char *store)
{
	const char *mount = getenv("RELAYFS"), *named = getenv("RELAYFS_STORE");
	if (!mount || !*mount || (named && *named))
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
