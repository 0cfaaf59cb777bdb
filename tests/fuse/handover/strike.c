/* SPDX-License-Identifier: MIT */
/* Loaded before libc and librelayfs: a process whose file $STRIKE begins with a line "before writev" or "after writev" takes
 * that line from it, and dies there; so for the other functions below, which the tap calls when it answers a READ or a FUSE_POLL,
 * when it keeps another message, and when it notifies the kernel of what a polled file is ready for. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <relayfs/ring_store.h>
#include <relayfs/store.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static void look(const char *step)
{
	char text[64] = {0};
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

static void strike(const char *step)
{
	int error = errno;
	look(step);
	errno = error;
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

int epoll_pwait(int fd, struct epoll_event *events, int n, int timeout, const sigset_t *mask)
{
	int (*really)(int, struct epoll_event *, int, int, const sigset_t *);
	*(void **)&really = dlsym(RTLD_NEXT, "epoll_pwait");
	strike("before epoll_pwait");
	int result = really(fd, events, n, timeout, mask);
	strike("after epoll_pwait");
	return result;
}

int eventfd_write(int fd, eventfd_t value)
{
	int (*really)(int, eventfd_t);
	*(void **)&really = dlsym(RTLD_NEXT, "eventfd_write");
	strike("before eventfd_write");
	int result = really(fd, value);
	strike("after eventfd_write");
	return result;
}

int relay_consume_begin_behind(struct rchan_buf *buf, uint64_t skip, size_t max_bytes, struct relay_span *spans,
                               size_t n_spans, size_t *total, uint64_t *end)
{
	int (*really)(struct rchan_buf *, uint64_t, size_t, struct relay_span *, size_t, size_t *, uint64_t *);
	*(void **)&really = dlsym(RTLD_NEXT, "relay_consume_begin_behind");
	strike("before relay_consume_begin_behind");
	int result = really(buf, skip, max_bytes, spans, n_spans, total, end);
	strike("after relay_consume_begin_behind");
	return result;
}

void relay_consume_end(struct rchan_buf *buf)
{
	void (*really)(struct rchan_buf *);
	*(void **)&really = dlsym(RTLD_NEXT, "relay_consume_end");
	strike("before relay_consume_end");
	really(buf);
	strike("after relay_consume_end");
}

ssize_t relay_buf_read_records(struct rchan_buf *buf, void *to, size_t size, size_t most)
{
	ssize_t (*really)(struct rchan_buf *, void *, size_t, size_t);
	*(void **)&really = dlsym(RTLD_NEXT, "relay_buf_read_records");
	strike("before relay_buf_read_records");
	ssize_t result = really(buf, to, size, most);
	strike("after relay_buf_read_records");
	return result;
}

ssize_t relay_ring_read_framed(struct relay_ring *ring, void *to, size_t size, unsigned max)
{
	ssize_t (*really)(struct relay_ring *, void *, size_t, unsigned);
	*(void **)&really = dlsym(RTLD_NEXT, "relay_ring_read_framed");
	strike("before relay_ring_read_framed");
	ssize_t result = really(ring, to, size, max);
	strike("after relay_ring_read_framed");
	return result;
}

int relay_buf_ready(struct rchan_buf *buf, uint64_t *progress)
{
	int (*really)(struct rchan_buf *, uint64_t *);
	*(void **)&really = dlsym(RTLD_NEXT, "relay_buf_ready");
	strike("before relay_buf_ready");
	int result = really(buf, progress);
	strike("after relay_buf_ready");
	return result;
}

int relay_wait_set_sleep(const struct relay_wait_set *set, uint32_t *stop, uint32_t stop_value, int timeout_ms)
{
	int (*really)(const struct relay_wait_set *, uint32_t *, uint32_t, int);
	*(void **)&really = dlsym(RTLD_NEXT, "relay_wait_set_sleep");
	strike("before relay_wait_set_sleep");
	int result = really(set, stop, stop_value, timeout_ms);
	strike("after relay_wait_set_sleep");
	return result;
}

int nanosleep(const struct timespec *wanted, struct timespec *left)
{
	int (*really)(const struct timespec *, struct timespec *);
	*(void **)&really = dlsym(RTLD_NEXT, "nanosleep");
	strike("before nanosleep");
	int result = really(wanted, left);
	strike("after nanosleep");
	return result;
}
