/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "at_once.h"

#include "lane.h"
#include "lookups.h"

#include <errno.h>
#include <linux/fuse.h>
#include <poll.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

/* WAIT_NS: on a busy machine a program may need so long to get a CPU. */
enum { WAIT_NS = 1000 * 1000, STAY_NS = 4000 * 1000, OTHERS_MAX = 4 };

static void *(*let_others_run)(void);
static void (*go_on)(void *);
/* The first one is /dev/fuse. */
static struct pollfd awaited[1 + OTHERS_MAX];
static nfds_t n_awaited = 1;

void relay_tap_share(void *(*let_run)(void), void (*end)(void *))
{
	let_others_run = let_run;
	go_on = end;
}

void relay_tap_turn_for(const int *fds, size_t n)
{
	for (n_awaited = 1; n_awaited <= n && n_awaited <= OTHERS_MAX; n_awaited++)
		awaited[n_awaited] = (struct pollfd){.fd = fds[n_awaited - 1], .events = POLLIN};
}

static uint64_t now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Wait for another message. 0: none comes, or the loop has something to do. */
static int next_comes(int fd)
{
	const struct timespec none = {0}, most = {.tv_nsec = WAIT_NS};
	awaited[0] = (struct pollfd){.fd = fd, .events = POLLIN};
	int n = ppoll(awaited, n_awaited, &none, NULL);
	if (!n && let_others_run) {
		void *state = let_others_run();
		n = ppoll(awaited, n_awaited, &most, NULL);
		go_on(state);
	}
	return n == 1 && awaited[0].revents;
}

ssize_t relay_at_once_read(int fd, void *message, size_t room, int is_held)
{
	uint64_t until = 0;
	for (;;) {
		const ssize_t length = read(fd, message, room);
		if (is_held || length < (ssize_t)sizeof(struct fuse_in_header) ||
		    !(relay_lane_answer(fd, message, (size_t)length) ||
		      relay_lookups_answer(fd, message, (size_t)length)))
			return length;
		if (!until)
			until = now_ns() + STAY_NS;
		else if (now_ns() >= until)
			break;
		if (!next_comes(fd))
			break;
	}
	errno = EINTR;
	return -1;
}
