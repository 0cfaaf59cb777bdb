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

/* SOON_NS: so soon the next request comes if the program gets a CPU. WAIT_NS: on a busy machine it may need so long for that. */
enum { SOON_NS = 200 * 1000, WAIT_NS = 1000 * 1000, STAY_NS = 4000 * 1000, OTHERS_MAX = 4 };

static void *(*let_others_run)(void);
static void (*go_on)(void *);
static int (*has_tasks)(void);
static uint64_t n_answers;
/* The first one is /dev/fuse. */
static struct pollfd awaited[1 + OTHERS_MAX];
static nfds_t n_awaited = 1;

void relay_tap_share(void *(*let_run)(void), void (*end)(void *))
{
	let_others_run = let_run;
	go_on = end;
}

void relay_tap_turn_for(const int *fds, size_t n, int (*loop_has_tasks)(void))
{
	has_tasks = loop_has_tasks;
	for (n_awaited = 1; n_awaited <= n && n_awaited <= OTHERS_MAX; n_awaited++)
		awaited[n_awaited] = (struct pollfd){.fd = fds[n_awaited - 1], .events = POLLIN};
}

uint64_t relay_tap_answers(void)
{
	return n_answers;
}

static uint64_t now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Wait for a message, or for something that the loop has to do. Returns as poll(2). */
static int wait_for(int64_t ns)
{
	const struct timespec most = {.tv_nsec = ns};
	if (!ns || !let_others_run)
		return ppoll(awaited, n_awaited, &most, NULL);
	void *state = let_others_run();
	int n = ppoll(awaited, n_awaited, &most, NULL);
	go_on(state);
	return n;
}

/* Wait for another message. 0: none comes, or the loop has something to do. */
static int next_comes(int fd)
{
	awaited[0] = (struct pollfd){.fd = fd, .events = POLLIN};
	int n = wait_for(0);
	if (!n)
		n = wait_for(SOON_NS);
	if (!n && !(has_tasks && has_tasks()))
		n = wait_for(WAIT_NS - SOON_NS);
	return n == 1 && awaited[0].revents;
}

static int answer(int fd, const void *message, size_t length, int holds_reads)
{
	return (!holds_reads && relay_lane_answer(fd, message, length)) || relay_lookups_answer(fd, message, length);
}

ssize_t relay_at_once_read(int fd, void *message, size_t room, int holds_reads)
{
	uint64_t until = 0;
	for (;;) {
		const ssize_t length = read(fd, message, room);
		if (length < (ssize_t)sizeof(struct fuse_in_header) ||
		    !answer(fd, message, (size_t)length, holds_reads))
			return length;
		n_answers++;
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
