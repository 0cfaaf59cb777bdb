/* SPDX-License-Identifier: MIT */
/* Loaded before libc: a process whose file $STRIKE begins with a line "before writev" or "after writev" takes that line
 * from it, and dies there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static void strike(const char *step)
{
	char text[32] = {0};
	const char *path = getenv("STRIKE");
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	if (fd < 0)
		return;
	ssize_t got = read(fd, text, sizeof(text) - 1);
	close(fd);
	char *then = strchr(text, '\n');
	if (then)
		*then++ = 0;
	if (got <= 0 || strcmp(text, step) != 0)
		return;
	fd = then ? open(path, O_WRONLY | O_TRUNC | O_CLOEXEC) : -1;
	if (fd < 0)
		unlink(path);
	else
		(void)!write(fd, then, strlen(then));
	kill(getpid(), SIGKILL);
}

ssize_t writev(int fd, const struct iovec *pieces, int count)
{
	ssize_t (*really)(int, const struct iovec *, int);
	*(void **)&really = dlsym(RTLD_NEXT, "writev");
	strike("before writev");
	ssize_t result = really(fd, pieces, count);
	strike("after writev");
	return result;
}
