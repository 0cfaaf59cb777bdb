/* SPDX-License-Identifier: MIT */
/*
 * One process's directory in a trace.
 *
 *     STORE/NAME/.new-PID-N       being made: hidden, until rename(2) shows it whole
 *     STORE/NAME/PROCESS-PID/     .events  cpu/mem0 .. memN-1
 *     STORE/NAME/.removed-PID-N   being removed
 *
 * Whether a process writes there is said by the kernel: each of them holds a lock on .events, which no child inherits and
 * which goes with the process, however that ends. Between being told of a directory and locking it a process is believed
 * for a while. The directories belong to the store's owner; .events and the buffers to whoever writes them, who may put
 * anything there.
 */
#define _GNU_SOURCE
#include "clock.h"
#include "immutable.h"
#include "libc.h"
#include "shm.h"
#include "store_dir.h"
#include "trace_room.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <relayfs/trace_store.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
	DIR_MODE = 0711,
	PROCESS_BYTES = 64, /* of a program's name, with the null byte */
	LINE_BYTES = 1024,  /* of the first line of .events, at most */
	TOLD_S = 10,        /* how long a process may take to lock what it was told of */
	MAX_TRIES = 10000,  /* names that are taken */
	MAX_DEPTH = 3,      /* of what is removed */
	REMOVAL_PAUSE_NS = 1000000
};

/* What is to be made, in a trace's directory. */
struct making {
	const char *store;
	const struct relay_trace *trace;
	char process[PROCESS_BYTES];
	uint32_t pid, vpid, uid, gid;
	const int *fds; /* of buffers that there are already, n_fds of them; NULL: they are to be made */
	uint32_t n_fds;
	const char *declarations; /* of their events */
	int trace_fd;             /* STORE/NAME */
	char hidden[NAME_MAX];    /* while it is made */
	int events_fd;            /* .events, open for appending */
};

/* ------------------------------------------------------------------ names */

static bool is_plain(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
	       (c && strchr("._+@:=-", c));
}

/* What may stand in a path, in a comment of .events, and in a trace's metadata. */
static void clean_name(char to[PROCESS_BYTES], const char *from)
{
	size_t n = 0;
	for (; n < PROCESS_BYTES - 1 && from[n]; n++)
		to[n] = is_plain(from[n]) && !(n == 0 && from[n] == '.') ? from[n] : '_';
	if (!n)
		to[n++] = '_';
	to[n] = 0;
}

/* The name that is tried after `tries` others. */
static void dir_name(const struct making *making, unsigned tries, char name[RELAY_TRACE_NAME_BYTES])
{
	char again[16] = "";
	switch (making->trace->buffers) {
	case RELAY_TRACE_PERPROCESS:
		if (tries)
			snprintf(again, sizeof(again), "-%u", tries + 1);
		snprintf(name, RELAY_TRACE_NAME_BYTES, "%s-%u%s", making->process, making->pid, again);
		break;
	case RELAY_TRACE_PERUSER:
		snprintf(name, RELAY_TRACE_NAME_BYTES, "user-%u", making->uid);
		break;
	default:
		snprintf(name, RELAY_TRACE_NAME_BYTES, "shared");
	}
}

static int open_dir(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	return fd < 0 ? -errno : fd;
}

/* STORE/NAME. */
static int open_trace(const struct making *making)
{
	char path[PATH_MAX];
	const char *name = making->trace->name;
	if (!name[0] || name[0] == '.' || strchr(name, '/'))
		return -EINVAL;
	if (snprintf(path, sizeof(path), "%s/%s", making->store, name) >= (int)sizeof(path))
		return -ENAMETOOLONG;
	int fd = open_dir(path);
	return fd == -ENOTDIR || fd == -ELOOP ? -ENOENT : fd;
}

/* A hidden directory of its own in dir_fd: ".WHY-PID-N". 0 or -errno. */
static int make_hidden(int dir_fd, const char *why, char name[NAME_MAX])
{
	static unsigned made;
	for (int tries = 0; tries < MAX_TRIES; tries++) {
		snprintf(name, NAME_MAX, ".%s-%ld-%u", why, (long)getpid(),
		         __atomic_fetch_add(&made, 1, __ATOMIC_RELAXED));
		if (mkdirat(dir_fd, name, 0700) == 0)
			return 0;
		if (errno != EEXIST)
			return -errno;
	}
	return -EEXIST;
}

/* ------------------------------------------------------------------ removing */

static void empty_dir(int fd, int depth);

/* A file, or a directory with all that is in it. Directories are nobody's but the store's owner's. */
static void remove_entry(int dir_fd, const char *name, int depth)
{
	int err = relay_file_unlinkat(dir_fd, name);
	if (!err || (err != -EISDIR && err != -EPERM))
		return;
	int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (fd >= 0 && depth < MAX_DEPTH)
		empty_dir(fd, depth + 1);
	else if (fd >= 0)
		close(fd);
	unlinkat(dir_fd, name, AT_REMOVEDIR);
}

/* fd is closed. */
static void empty_dir(int fd, int depth)
{
	DIR *dir = fdopendir(fd);
	if (!dir) {
		close(fd);
		return;
	}
	for (struct dirent *entry; (entry = readdir(dir));)
		if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
			remove_entry(dirfd(dir), entry->d_name, depth);
	closedir(dir);
}

/* Writers that are still there find the buffers closed. */
static void close_buffers(int dir_fd)
{
	char name[64];
	for (uint32_t cpu = 0;; cpu++) {
		snprintf(name, sizeof(name), "cpu/mem%u", cpu);
		int fd = relay_file_openat(dir_fd, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
		if (fd < 0)
			return;
		struct rchan_buf *buf = relay_buf_fdopen(fd);
		struct relay_facts facts;
		if (buf && relay_buf_facts(buf, &facts) == 0 && !facts.closed)
			relay_buf_stop(buf, RELAY_CLOSED, 1);
		relay_buf_release(buf);
		close(fd);
	}
}

/* Put it out of sight, then take it apart. The caller sees to it that nobody writes there, or does not care. */
static int remove_named(int parent_fd, const char *name)
{
	char hidden[NAME_MAX];
	int err = make_hidden(parent_fd, "removed", hidden);
	if (err)
		return err;
	/* An empty directory may be replaced. */
	if (renameat(parent_fd, name, parent_fd, hidden)) {
		err = -errno;
		unlinkat(parent_fd, hidden, AT_REMOVEDIR);
		return err;
	}
	int fd = openat(parent_fd, hidden, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (fd >= 0)
		close_buffers(fd);
	if (fd >= 0)
		empty_dir(fd, 0);
	return unlinkat(parent_fd, hidden, AT_REMOVEDIR) ? -errno : 0;
}

int relay_trace_remove(const char *dir)
{
	char parent[PATH_MAX];
	if (snprintf(parent, sizeof(parent), "%s", dir) >= (int)sizeof(parent))
		return -ENAMETOOLONG;
	char *slash = strrchr(parent, '/');
	if (!slash || !slash[1])
		return -EINVAL;
	*slash = 0;
	int fd = open_dir(parent);
	if (fd < 0)
		return fd;
	int err = remove_named(fd, slash + 1);
	close(fd);
	return err;
}

/* ------------------------------------------------------------------ being alive */

/* Held as long as this process lives, or closes any descriptor of the file. */
static int lock_events(int fd)
{
	struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
	return fcntl(fd, F_SETLK, &lock) ? -errno : 0;
}

static bool is_locked(int fd)
{
	/* As an open file, so that this process's own locks count, too. */
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

/*
 * Has a process been told of it, and not had the time to lock it? Who has locked it declares its events next, so a directory
 * for one process that has more than its first line is nobody's any more.
 */
static bool is_told(int fd)
{
	char line[LINE_BYTES + 1];
	struct stat st;
	ssize_t got = pread(fd, line, LINE_BYTES, 0);
	if (got <= 0 || fstat(fd, &st))
		return false;
	line[got] = 0;
	char *end = strchr(line, '\n');
	bool is_one_line = end && (off_t)(end + 1 - line) == st.st_size;
	if (!is_one_line && strstr(line, " buffers=perprocess "))
		return false;
	time_t age = time(NULL) - st.st_mtime;
	return age >= -1 && age < TOLD_S;
}

int relay_trace_is_alive(const char *dir)
{
	char path[PATH_MAX];
	if (snprintf(path, sizeof(path), "%s/.events", dir) >= (int)sizeof(path))
		return 0;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return 0;
	int alive = is_locked(fd) || is_told(fd);
	close(fd);
	return alive;
}

/* ------------------------------------------------------------------ removing what is over */

/* As long as the descriptor is open no process can take part; -EBUSY: one does. */
static int lock_against_processes(int fd)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	if (fcntl(fd, F_OFD_SETLK, &lock))
		return errno == EAGAIN || errno == EACCES ? -EBUSY : -errno;
	/* Pairs with touch(): whoever was told after this look will find it gone. */
	return is_told(fd) ? -EBUSY : 0;
}

/* Does the name still lead to what is open? */
static bool is_at(const char *path, int fd)
{
	struct stat by_name, opened;
	return lstat(path, &by_name) == 0 && fstat(fd, &opened) == 0 && by_name.st_dev == opened.st_dev &&
	       by_name.st_ino == opened.st_ino;
}

int relay_trace_remove_dead(const char *dir)
{
	/* First the directory: one without .events is nobody's, as they appear whole; one that comes now is another. */
	int dir_fd = open_dir(dir);
	if (dir_fd < 0)
		return dir_fd;
	int fd = openat(dir_fd, ".events", O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	int err = fd >= 0 ? lock_against_processes(fd) : errno == ENOENT ? 0 : -errno;
	if (!err && !is_at(dir, dir_fd))
		err = -ENOENT;
	if (!err)
		err = relay_trace_remove(dir);
	if (fd >= 0)
		close(fd);
	close(dir_fd);
	return err;
}

/* ------------------------------------------------------------------ making */

static uint32_t file_mode(const struct relay_trace *trace)
{
	static const uint32_t modes[] = {
	    [RELAY_TRACE_PERPROCESS] = 0640, [RELAY_TRACE_PERUSER] = 0600, [RELAY_TRACE_SHARED] = 0666};
	return modes[trace->buffers];
}

static int write_first_line(const struct making *making)
{
	static const char *const buffers[] = {"perprocess", "peruser", "shared"};
	const struct relay_trace *trace = making->trace;
	char line[LINE_BYTES];
	/* While the trace is not there yet its numbers are as long as any may be that will replace them. */
	int digits = trace->id == UINT64_MAX ? 20 : 1;
	int length = snprintf(
	    line, sizeof(line),
	    "/* relayfs trace=%s id=%" PRIu64 " process=%s pid=%u vpid=%u uid=%u buffers=%s clock=%s tsc=%0*" PRIu64
	    " mono=%0*" PRIu64 " real=%0*" PRIu64 " boot=%s made_mono=%" PRIu64 " */\n",
	    trace->name, trace->id, making->process, making->pid, making->vpid, making->uid, buffers[trace->buffers],
	    trace->clock == RELAY_TSC ? "tsc" : "mono", digits, trace->made.tsc, digits, trace->made.mono_ns, digits,
	    trace->made.real_ns, trace->boot, relay_clock_ns(CLOCK_MONOTONIC));
	if (length >= (int)sizeof(line))
		return -EINVAL;
	return write(making->events_fd, line, (size_t)length) == length ? 0 : errno == 0 ? -ENOSPC : -errno;
}

/* The process that has it locked from the beginning needs no time for it. */
static int mark_as_locked(int fd)
{
	const struct timespec long_ago[2] = {{.tv_sec = 0}, {.tv_sec = 0}};
	return futimens(fd, long_ago) ? -errno : 0;
}

static int make_events(struct making *making, bool lock)
{
	char path[2 * NAME_MAX];
	snprintf(path, sizeof(path), "%s/.events", making->hidden);
	making->events_fd =
	    openat(making->trace_fd, path, O_RDWR | O_APPEND | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (making->events_fd < 0)
		return -errno;
	errno = 0;
	int err = write_first_line(making);
	size_t length = making->declarations ? strlen(making->declarations) : 0;
	if (!err && length && write(making->events_fd, making->declarations, length) != (ssize_t)length)
		err = errno ? -errno : -ENOSPC;
	if (!err && lock)
		err = lock_events(making->events_fd);
	if (!err && lock)
		err = mark_as_locked(making->events_fd);
	if (!err)
		err = relay_shm_own(making->events_fd, file_mode(making->trace), making->uid, making->gid);
	return err;
}

static int make_buffers(const struct making *making)
{
	const struct relay_trace *trace = making->trace;
	char path[PATH_MAX];
	if (snprintf(path, sizeof(path), "%s/%s/%s/cpu", making->store, trace->name, making->hidden) >=
	    (int)sizeof(path))
		return -ENAMETOOLONG;
	if (making->fds)
		return relay_store_adopt(path, making->fds, making->n_fds);
	struct relay_spec spec = {
	    .size = sizeof(spec),
	    .subbuf_size = trace->subbuf_size,
	    .n_subbufs = trace->n_subbufs,
	    .n_buffers = relay_n_possible_cpus(),
	    .mode = trace->mode,
	    .scheme = RELAY_ANY_SCHEME,
	    .buffers = RELAY_PERCPU,
	    .delivery = RELAY_BULK,
	    .read = RELAY_READ_NOWAIT,
	    .file_mode = file_mode(trace),
	    .uid = making->uid,
	    .gid = making->gid,
	    .timestamp = trace->clock,
	    .start_reserve = sizeof(struct relay_packet),
	    .format = RELAY_PACKETS,
	    .pid = trace->buffers == RELAY_TRACE_PERPROCESS ? making->pid : 0,
	};
	/* Those of several programs are there once, and whoever joins finds them with sub-buffers that have begun. */
	return trace->buffers == RELAY_TRACE_PERPROCESS ? relay_store_create_sparse(path, &spec)
	                                                : relay_store_create(path, &spec);
}

/* -EEXIST: every name is taken. */
static int show(const struct making *making, char name[RELAY_TRACE_NAME_BYTES])
{
	unsigned tries = making->trace->buffers == RELAY_TRACE_PERPROCESS ? MAX_TRIES : 1;
	if (fchmodat(making->trace_fd, making->hidden, DIR_MODE, 0))
		return -errno;
	for (unsigned i = 0; i < tries; i++) {
		dir_name(making, i, name);
		if (relay_rename_new(making->trace_fd, making->hidden, making->trace_fd, name) == 0)
			return 0;
		if (errno != EEXIST)
			return -errno;
	}
	return -EEXIST;
}

/* Note that a process is told of it now. */
static int touch(int fd)
{
	/* Goes with the descriptor. Whoever removes it has looked already, or will see what we do. */
	struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
	return fcntl(fd, F_OFD_SETLK, &lock) || futimens(fd, NULL) ? -errno : 0;
}

/* Take part in one that is there. -ENOENT: it is gone; -EEXIST: it is going. */
static int join(const struct making *making, int *lock, char name[RELAY_TRACE_NAME_BYTES])
{
	char path[2 * NAME_MAX];
	struct stat st;
	dir_name(making, 0, name);
	snprintf(path, sizeof(path), "%s/.events", name);
	int fd = openat(making->trace_fd, path, O_RDWR | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return -errno;
	int err = lock ? lock_events(fd) : touch(fd);
	if (err == -EAGAIN || err == -EACCES) {
		nanosleep(&(struct timespec){.tv_nsec = REMOVAL_PAUSE_NS}, NULL);
		err = -EEXIST;
	}
	/* Whoever removes it may have looked before. */
	if (!err && (fstatat(making->trace_fd, path, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode)))
		err = -ENOENT;
	if (!err && lock)
		*lock = fd;
	else
		close(fd);
	return err ? err : 1;
}

/* Its own hidden directory is there. */
static int make_room(const struct making *making)
{
	char dir[PATH_MAX];
	if (making->fds) /* they have their memory already */
		return 0;
	snprintf(dir, sizeof(dir), "%s/%s", making->store, making->trace->name);
	return relay_trace_make_room(making->trace_fd, dir, making->trace);
}

static int make_new(struct making *making, int *lock, char name[RELAY_TRACE_NAME_BYTES])
{
	int err = make_hidden(making->trace_fd, "new", making->hidden);
	if (err)
		return err;
	making->events_fd = -1;
	err = make_room(making);
	if (!err)
		err = make_events(making, lock != NULL);
	if (!err)
		err = make_buffers(making);
	if (!err)
		err = show(making, name);
	if (err)
		remove_entry(making->trace_fd, making->hidden, 0);
	if (!err && lock)
		*lock = making->events_fd;
	else if (making->events_fd >= 0)
		close(making->events_fd);
	return err;
}

static int make(struct making *making, int *lock, char name[RELAY_TRACE_NAME_BYTES])
{
	bool is_own = making->trace->buffers == RELAY_TRACE_PERPROCESS;
	int err;
	/* Others make and remove the same directory. */
	for (int tries = 0; tries < MAX_TRIES; tries++) {
		err = is_own ? -ENOENT : join(making, lock, name);
		if (err == -ENOENT)
			err = make_new(making, lock, name);
		if (err != -EEXIST || is_own)
			break;
	}
	return err;
}

static int make_in(struct making *making, const char *process, int *lock, char name[RELAY_TRACE_NAME_BYTES])
{
	clean_name(making->process, making->trace->buffers == RELAY_TRACE_PERPROCESS ? process : "-");
	making->trace_fd = open_trace(making);
	if (making->trace_fd < 0)
		return making->trace_fd;
	int err = make(making, lock, name);
	close(making->trace_fd);
	return err;
}

int relay_trace_make(const char *store, const struct relay_trace *trace, const char *process, uint32_t pid,
                     uint32_t vpid, uint32_t uid, uint32_t gid, int *lock, char name[RELAY_TRACE_NAME_BYTES])
{
	struct making making = {.store = store, .trace = trace, .pid = pid, .vpid = vpid, .uid = uid, .gid = gid};
	if (trace->buffers > RELAY_TRACE_SHARED)
		return -EINVAL;
	if (trace->buffers == RELAY_TRACE_SHARED) {
		making.uid = geteuid();
		making.gid = getegid();
	}
	return make_in(&making, process, lock, name);
}

int relay_trace_adopt(const char *store, const struct relay_trace *trace, const char *process, const int *fds, size_t n,
                      const char *declarations, int *lock, char name[RELAY_TRACE_NAME_BYTES])
{
	struct relay_trace own = *trace;
	struct making making = {.store = store,
	                        .trace = &own,
	                        .pid = (uint32_t)getpid(),
	                        .vpid = (uint32_t)getpid(),
	                        .uid = geteuid(),
	                        .gid = getegid(),
	                        .fds = fds,
	                        .n_fds = (uint32_t)n,
	                        .declarations = declarations};
	own.buffers = RELAY_TRACE_PERPROCESS;
	own.clock = RELAY_MONO;
	return make_in(&making, process, lock, name);
}
