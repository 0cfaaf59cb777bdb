/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "trace/alive.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <relayfs/trace_store.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
	OFFERED_S = 10, /* seconds that a process has to lock .events of a directory that it was offered */
	OWN_MAX = 64
};

/* The descriptors with which this process has locked .events of its directories, the last OWN_MAX of them. close(2) of any
 * other descriptor of such a file would release the lock, so relay_trace_is_alive() must not open it. Under
 * relay_trace_lock(). */
static struct {
	pid_t pid; /* whose they are: a child of fork() has no locks */
	unsigned n;
	int fds[OWN_MAX];
} own;

static void note_own(int fd)
{
	const pid_t pid = getpid();
	if (own.pid != pid)
		own.n = 0;
	own.pid = pid;
	own.fds[own.n++ % OWN_MAX] = fd;
}

static bool is_own(const char *path)
{
	struct stat by_name, opened;
	if (own.pid != getpid() || stat(path, &by_name))
		return false;
	for (unsigned i = 0; i < own.n && i < OWN_MAX; i++)
		/* One that was closed since may have been opened for another file. */
		if (fstat(own.fds[i], &opened) == 0 && opened.st_dev == by_name.st_dev &&
		    opened.st_ino == by_name.st_ino)
			return true;
	return false;
}

int relay_trace_lock_events(int fd)
{
	struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
	if (fcntl(fd, F_SETLK, &lock))
		return -errno;
	note_own(fd);
	return 0;
}

static bool is_locked(int fd)
{
	/* F_OFD_GETLK reports also the locks of this process, which F_GETLK leaves out. */
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

bool relay_trace_is_offered(int fd)
{
	char line[RELAY_TRACE_LINE_BYTES + 1];
	struct stat st;
	ssize_t got = pread(fd, line, RELAY_TRACE_LINE_BYTES, 0);
	if (got <= 0 || fstat(fd, &st))
		return false;
	line[got] = 0;
	char *end = strchr(line, '\n');
	bool is_one_line = end && (off_t)(end + 1 - line) == st.st_size;
	if (!is_one_line && strstr(line, " buffers=perprocess "))
		return false;
	time_t age = time(NULL) - st.st_mtime;
	return age >= -1 && age < OFFERED_S;
}

int relay_trace_is_alive(const char *dir)
{
	char path[PATH_MAX];
	if (snprintf(path, sizeof(path), "%s/.events", dir) >= (int)sizeof(path))
		return 0;
	if (is_own(path))
		return 1;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return 0;
	int alive = is_locked(fd) || relay_trace_is_offered(fd);
	close(fd);
	return alive;
}
