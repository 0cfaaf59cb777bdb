/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "at_once.h"

#include "beside.h"
#include "lane.h"
#include "lookups.h"
#include "polls.h"

#include <errno.h>
#include <linux/fuse.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

/* SOON_NS: so soon the next request comes if the program gets a CPU. WAIT_NS: on a busy machine it may need so long for
 * that. STEADY: so many requests in a row make a thread one that goes on. */
enum { SOON_NS = 200 * 1000, WAIT_NS = 1000 * 1000, STAY_NS = 4000 * 1000, STEADY = 3 };

/* What a descriptor in `awaited` is. */
enum { MESSAGES = 1, TIMER = 2, LOOP = 4 };

static void *(*let_others_run)(void);
static void (*go_on)(void *);
static int (*has_tasks)(void);
static uint64_t n_answers;

/* What this thread sleeps on (epoll(7)), and its timer. awaited is -1 before relay_tap_turn_for(), and if that has failed: then
 * this thread does not wait. */
static int awaited = -1, timer = -1;

/* The time from the first answer on until the loop turns. The timer ends each step of it, so that no request needs a timer
 * of its own. */
struct stay {
	void *python; /* what go_on() takes; NULL: other threads of Python do not run */
	int64_t step_ns, ns, idle_ns;
	uint64_t n_before; /* n_answers when the step began */
	uint32_t thread;   /* has made the last `in_a_row` requests */
	uint32_t in_a_row;
};

void relay_tap_share(void *(*let_run)(void), void (*end)(void *))
{
	let_others_run = let_run;
	go_on = end;
}

static int add(int fd, uint32_t what)
{
	struct epoll_event event = {.events = EPOLLIN, .data.u32 = what};
	return epoll_ctl(awaited, EPOLL_CTL_ADD, fd, &event);
}

void relay_tap_turn_for(int device, const int *fds, size_t n, int (*loop_has_tasks)(void))
{
	has_tasks = loop_has_tasks;
	awaited = epoll_create1(EPOLL_CLOEXEC);
	timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	int result = add(device, MESSAGES) | add(timer, TIMER);
	for (size_t i = 0; i < n; i++)
		result |= add(fds[i], LOOP);
	if (result) {
		close(timer);
		close(awaited);
		awaited = -1;
	}
}

uint64_t relay_tap_answers(void)
{
	return n_answers;
}

/* Begin the next step. 0: the loop is to turn. */
static int step(struct stay *stay)
{
	if (stay->step_ns) {
		if (stay->in_a_row >= STEADY)
			relay_beside(stay->thread);
		stay->ns += stay->step_ns;
		stay->idle_ns = n_answers == stay->n_before ? stay->idle_ns + stay->step_ns : 0;
		if (stay->idle_ns >= WAIT_NS || stay->ns >= STAY_NS || (stay->idle_ns && has_tasks && has_tasks()))
			return 0;
	}
	stay->n_before = n_answers;
	stay->step_ns = !stay->step_ns ? SOON_NS : stay->ns < WAIT_NS ? WAIT_NS - SOON_NS : WAIT_NS;
	const struct itimerspec after = {.it_value.tv_nsec = stay->step_ns};
	return timerfd_settime(timer, 0, &after, NULL) == 0;
}

/* Wait for another message. 0: the loop is to turn. */
static int next_comes(struct stay *stay)
{
	struct epoll_event events[3];
	if (awaited < 0)
		return 0;
	if (!stay->step_ns) {
		if (!step(stay))
			return 0;
		stay->python = let_others_run ? let_others_run() : NULL;
	}
	for (;;) {
		uint32_t found = 0;
		int n = epoll_pwait(awaited, events, 3, -1, NULL);
		for (int i = 0; i < n; i++)
			found |= events[i].data.u32;
		if (n < 0 || found & LOOP || (found & TIMER && !step(stay)))
			return 0;
		if (found & MESSAGES)
			return 1;
	}
}

static void note_thread(struct stay *stay, uint32_t thread)
{
	stay->in_a_row = thread == stay->thread ? stay->in_a_row + 1 : 1;
	stay->thread = thread;
}

static int answer(int fd, const void *message, size_t length, int holds_reads)
{
	return (!holds_reads && relay_lane_answer(fd, message, length)) || relay_lookups_answer(fd, message, length) ||
	       relay_polls_answer(fd, message, length);
}

ssize_t relay_at_once_read(int fd, void *message, size_t room, int holds_reads)
{
	struct stay stay = {0};
	const struct fuse_in_header *in = message;
	ssize_t length;
	for (;;) {
		length = read(fd, message, room);
		if (length < (ssize_t)sizeof(*in) || !answer(fd, in, (size_t)length, holds_reads))
			break;
		n_answers++;
		note_thread(&stay, in->pid);
		if (!next_comes(&stay)) {
			length = -1;
			errno = EINTR;
			break;
		}
	}
	int error = errno;
	if (stay.python)
		go_on(stay.python);
	errno = error;
	return length;
}
