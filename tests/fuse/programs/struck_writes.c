/* SPDX-License-Identifier: MIT */
/*
 * Loaded before libc: write(2) to regular files. Each is a line of the file $WRITES, "direct" or "cached" and its length. At the one
 * whose number is $STRIKE, a number from 1 on, the process dies: before it, when half of it is written, or behind it, as
 * $STRIKE_WHEN says.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK_BYTES = 4096 };

static ssize_t (*really)(int, const void *, size_t);
static unsigned n_writes;

static void note(const char *how, size_t length)
{
	char line[64];
	int n = snprintf(line, sizeof(line), "%s %zu\n", how, length);
	int fd = open(getenv("WRITES"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (fd < 0 || really(fd, line, (size_t)n) != n)
		abort();
	close(fd);
}

ssize_t write(int fd, const void *data, size_t length)
{
	struct stat stat;
	*(void **)&really = dlsym(RTLD_NEXT, "write");
	if (fstat(fd, &stat) || !S_ISREG(stat.st_mode))
		return really(fd, data, length);
	int is_direct = fcntl(fd, F_GETFL) & O_DIRECT;
	const char *number = getenv("STRIKE"), *when = getenv("STRIKE_WHEN");
	int dies = number && ++n_writes == strtoul(number, NULL, 10);
	note(is_direct ? "direct" : "cached", length);
	if (dies && !strcmp(when, "before"))
		kill(getpid(), SIGKILL);
	if (dies && !strcmp(when, "in"))
		length = is_direct ? length / 2 & -(size_t)BLOCK_BYTES : length / 2;
	ssize_t n = really(fd, data, length);
	if (dies)
		kill(getpid(), SIGKILL);
	return n;
}
