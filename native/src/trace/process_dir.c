/* SPDX-License-Identifier: MIT */
/*
 * Making the directory of a process in a trace.
 *
 *     STORE/NAME/.new-PID-N       the directory while it is made; rename(2) then gives it its name
 *     STORE/NAME/PROCESS-PID/     .events  cpu/mem0 .. memN-1
 *     STORE/NAME/.removed-PID-N   the directory while it is removed (trace/remove.c)
 *
 * Each process that writes to the directory holds a lock on .events (trace/alive.h), which the kernel releases when the
 * process ends; a child of fork() does not inherit it. If the server makes the directory for a process, the process
 * takes the lock a moment later, so for ten seconds the directory counts as if it were locked. The directories belong
 * to the store's owner. .events and the buffers belong to the user whose processes write to them, and may contain
 * anything.
 */
#define _GNU_SOURCE
#include "base/clock.h"
#include "base/directory.h"
#include "base/mapping.h"
#include "buffer/make.h"
#include "trace/alive.h"
#include "trace/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <relayfs/trace_store.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
	PROCESS_BYTES = 64,        /* of a program's name, with the null byte */
	MAX_TRIES = 10000,         /* to find a free name, or to make or join a directory of several processes */
	REMOVAL_PAUSE_NS = 1000000 /* between two tries to join a directory that is being removed */
};

/* The directory that is made. */
struct making {
	const char *store;
	const struct relay_trace *trace;
	char process[PROCESS_BYTES];
	uint32_t pid, vpid, uid, gid;
	const int *fds; /* n_fds existing buffers to be adopted; NULL: buffers are made */
	uint32_t n_fds;
	const char *declarations; /* of the events in the adopted buffers */
	int trace_fd;             /* STORE/NAME */
	char hidden[PATH_MAX];    /* ".new-PID-N" */
	int events_fd;            /* .events, open for appending */
};

/* ------------------------------------------------------------------ names */

static bool is_plain(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
	       (c && strchr("._+@:=-", c));
}

/* Replace characters that are not allowed in a path, a comment in .events or the trace's metadata. */
static void clean_name(char to[PROCESS_BYTES], const char *from)
{
	size_t n = 0;
	for (; n < PROCESS_BYTES - 1 && from[n]; n++)
		to[n] = is_plain(from[n]) && !(n == 0 && from[n] == '.') ? from[n] : '_';
	if (!n)
		to[n++] = '_';
	to[n] = 0;
}

/* Get the directory's name. tries: how many names were taken already. */
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

/* Open STORE/NAME. A descriptor or -errno: -ENOENT: there is no such directory; -EINVAL: NAME is not allowed. */
static int open_trace(const struct making *making)
{
	char path[PATH_MAX];
	const char *name = making->trace->name;
	if (!name[0] || name[0] == '.' || strchr(name, '/'))
		return -EINVAL;
	if (snprintf(path, sizeof(path), "%s/%s", making->store, name) >= (int)sizeof(path))
		return -ENAMETOOLONG;
	int fd = relay_directory_open(path);
	return fd == -ENOTDIR || fd == -ELOOP ? -ENOENT : fd;
}

/* ------------------------------------------------------------------ making */

static uint32_t file_mode(const struct relay_trace *trace)
{
	static const uint32_t modes[] = {[RELAY_TRACE_PERPROCESS] = RELAY_PERM_PERPROCESS,
	                                 [RELAY_TRACE_PERUSER] = RELAY_PERM_PERUSER,
	                                 [RELAY_TRACE_SHARED] = RELAY_PERM_SHARED};
	return modes[trace->buffers];
}

static int write_first_line(const struct making *making)
{
	static const char *const buffers[] = {"perprocess", "peruser", "shared"};
	const struct relay_trace *trace = making->trace;
	const struct relay_clock *clock = relay_clock_at(trace->clock);
	char line[RELAY_TRACE_LINE_BYTES];
	if (!clock)
		return -EINVAL;
	/* tsc= has the time by the trace's clock, whichever that is. */
	/* For early events (trace/early.h) the numbers are padded, because the server replaces them in place later. */
	int digits = trace->id == UINT64_MAX ? 20 : 1;
	int length = snprintf(
	    line, sizeof(line),
	    "/* relayfs trace=%s id=%" PRIu64 " process=%s pid=%u vpid=%u uid=%u buffers=%s clock=%s tsc=%0*" PRIu64
	    " mono=%0*" PRIu64 " real=%0*" PRIu64 " boot=%s made_mono=%" PRIu64 " */\n",
	    trace->name, trace->id, making->process, making->pid, making->vpid, making->uid, buffers[trace->buffers],
	    clock->word, digits, trace->made.ticks, digits, trace->made.mono_ns, digits, trace->made.real_ns,
	    trace->boot, relay_clock_ns(CLOCK_MONOTONIC));
	if (length >= (int)sizeof(line))
		return -EINVAL;
	return write(making->events_fd, line, (size_t)length) == length ? 0 : errno == 0 ? -ENOSPC : -errno;
}

/* Set an old time of change, because relay_trace_is_offered() need not wait for a process whose lock was taken here. */
static int mark_as_locked(int fd)
{
	const struct timespec long_ago[2] = {{.tv_sec = 0}, {.tv_sec = 0}};
	return futimens(fd, long_ago) ? -errno : 0;
}

static int make_events(struct making *making, bool lock)
{
	char path[PATH_MAX + sizeof("/.events")];
	snprintf(path, sizeof(path), "%s/.events", making->hidden);
	making->events_fd = openat(making->trace_fd, path,
	                           O_RDWR | O_APPEND | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, RELAY_PERM_NEW);
	if (making->events_fd < 0)
		return -errno;
	errno = 0;
	int err = write_first_line(making);
	size_t length = making->declarations ? strlen(making->declarations) : 0;
	if (!err && length && write(making->events_fd, making->declarations, length) != (ssize_t)length)
		err = errno ? -errno : -ENOSPC;
	if (!err && lock)
		err = relay_trace_lock_events(making->events_fd);
	if (!err && lock)
		err = mark_as_locked(making->events_fd);
	if (!err)
		err = relay_mapping_own(making->events_fd, file_mode(making->trace), making->uid, making->gid);
	return err;
}

/* Get the path of the channel with the buffers. 0 or -ENAMETOOLONG. */
static int buffers_path(const struct making *making, char path[PATH_MAX])
{
	int length = snprintf(path, PATH_MAX, "%s/%s/%s/cpu", making->store, making->trace->name, making->hidden);
	return length < PATH_MAX ? 0 : -ENAMETOOLONG;
}

static int make_buffers(const struct making *making)
{
	const struct relay_trace *trace = making->trace;
	char path[PATH_MAX];
	if (buffers_path(making, path))
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
	/* The data of the buffers of a single process get memory when the process first writes to them. Buffers of
	 * several processes get it here. */
	return trace->buffers == RELAY_TRACE_PERPROCESS ? relay_store_create_sparse(path, &spec)
	                                                : relay_store_create(path, &spec);
}

/* Rename the hidden directory. `name` receives its name. 0 or -errno: -EEXIST: every name is taken. */
static int show(const struct making *making, char name[RELAY_TRACE_NAME_BYTES])
{
	unsigned tries = making->trace->buffers == RELAY_TRACE_PERPROCESS ? MAX_TRIES : 1;
	int err = -EEXIST;
	for (unsigned i = 0; err == -EEXIST && i < tries; i++) {
		dir_name(making, i, name);
		err = relay_hidden_show(making->trace_fd, making->hidden, name, RELAY_PERM_INNER);
	}
	return err;
}

/* Set the time of change of .events, by which relay_trace_is_offered() knows that a process is offered the directory
 * now. 0 or -errno: -EAGAIN or -EACCES: it is being removed. */
static int mark_offered(int fd)
{
	/* Pairs with lock_against_processes(), trace/remove.c: either its lock makes this one fail, or it is taken
	 * after the time was set. close(2) of fd releases this lock. */
	struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
	return fcntl(fd, F_OFD_SETLK, &lock) || futimens(fd, NULL) ? -errno : 0;
}

/* Join the directory of several processes. lock: receives a locked descriptor of .events; NULL: offer the directory to
 * another process. 1; -ENOENT: it does not exist; -EEXIST: it is being removed; or another -errno. */
static int join_dir(const struct making *making, int *lock, char name[RELAY_TRACE_NAME_BYTES])
{
	char path[2 * NAME_MAX];
	struct stat st;
	dir_name(making, 0, name);
	snprintf(path, sizeof(path), "%s/.events", name);
	int fd = openat(making->trace_fd, path, O_RDWR | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return -errno;
	int err = lock ? relay_trace_lock_events(fd) : mark_offered(fd);
	if (err == -EAGAIN || err == -EACCES) {
		nanosleep(&(struct timespec){.tv_nsec = REMOVAL_PAUSE_NS}, NULL);
		err = -EEXIST;
	}
	/* The directory may have been removed between the open and the lock. */
	if (!err && (fstatat(making->trace_fd, path, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode)))
		err = -ENOENT;
	if (!err && lock)
		*lock = fd;
	else
		close(fd);
	return err ? err : 1;
}

/* The hidden directory exists already, because relay_trace_make_room() counts it. */
static int make_room_for_dir(const struct making *making)
{
	char dir[PATH_MAX];
	if (making->fds) /* adopted buffers have their memory already */
		return 0;
	snprintf(dir, sizeof(dir), "%s/%s", making->store, making->trace->name);
	return relay_trace_make_room(making->trace_fd, dir, making->trace);
}

/* Remove the hidden directory and each file that can be in it. The directory is not listed, because the process may
 * have no descriptor left for that. */
static void unmake(const struct making *making)
{
	char path[PATH_MAX + sizeof("/.events")];
	if (buffers_path(making, path) == 0)
		relay_store_remove(path, making->fds ? making->n_fds : relay_n_possible_cpus());
	snprintf(path, sizeof(path), "%s/.events", making->hidden);
	unlinkat(making->trace_fd, path, 0);
	unlinkat(making->trace_fd, making->hidden, AT_REMOVEDIR);
}

/* Make the directory. 0 or -errno: -EEXIST: its name is taken. */
static int make_new(struct making *making, int *lock, char name[RELAY_TRACE_NAME_BYTES])
{
	int err = relay_hidden_make(making->trace_fd, "", making->hidden);
	if (err)
		return err;
	making->events_fd = -1;
	err = make_room_for_dir(making);
	if (!err)
		err = make_events(making, lock != NULL);
	if (!err)
		err = make_buffers(making);
	if (!err)
		err = show(making, name);
	if (err)
		unmake(making);
	if (!err && lock)
		*lock = making->events_fd;
	else if (making->events_fd >= 0)
		close(making->events_fd);
	return err;
}

static int make_or_join_dir(struct making *making, int *lock, char name[RELAY_TRACE_NAME_BYTES])
{
	bool is_own = making->trace->buffers == RELAY_TRACE_PERPROCESS;
	int err;
	/* Other processes may make or remove the same directory at the same time. */
	for (int tries = 0; tries < MAX_TRIES; tries++) {
		err = is_own ? -ENOENT : join_dir(making, lock, name);
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
	int err = make_or_join_dir(making, lock, name);
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
