/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "at_once.h"

#include "beside.h"
#include "lane.h"
#include "lookups.h"
#include "polls.h"

#include <errno.h>
#include <linux/fuse.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum { MS_NS = 1000 * 1000 };

/* STEADY: so many requests in a row, with pauses of at most PAUSE_NS, make a thread one that goes on. After FIRST_NS, and then each
 * LOOK_NS, this thread looks where that one runs. */
enum { STEADY = 3, PAUSE_NS = MS_NS, FIRST_NS = 200 * 1000, LOOK_NS = MS_NS };

/* What a descriptor in `awaited` is. */
enum { MESSAGES = 1, LOOP = 2 };

/* Descriptors of epoll(7). awaited: what relay_at_once_wait() sleeps on, the device and what the loop waits for; -1: the loop
 * waits by itself. messages: what libfuse waits for, the device and `has_kept`, an eventfd. */
static int awaited = -1, messages = -1, has_kept = -1;

/* A message that was read for libfuse. */
static struct {
	void *message;
	size_t size;   /* of the memory */
	size_t length; /* 0: there is none */
	int is_free;   /* 0: libfuse is to read the next message, or the error that there was */
} kept;

static uint64_t n_answers;
static int will_turn;

void relay_tap_turn(void)
{
	will_turn = 1;
}

uint64_t relay_tap_answers(void)
{
	return n_answers;
}

/* ------------------------------------------------------------------ descriptors */

static int add(int epoll, int fd, uint32_t what)
{
	struct epoll_event event = {.events = EPOLLIN, .data.u32 = what};
	return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

int relay_at_once_open(int device)
{
	messages = epoll_create1(EPOLL_CLOEXEC);
	has_kept = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return add(messages, device, MESSAGES) || add(messages, has_kept, MESSAGES) ? -1 : messages;
}

void relay_tap_wait_for(int device, int loop)
{
	awaited = epoll_create1(EPOLL_CLOEXEC);
	if (add(awaited, device, MESSAGES) || add(awaited, loop, LOOP)) {
		close(awaited);
		awaited = -1;
	}
}

/* Whether libfuse, and so the loop, is woken by the device. */
static void wake_libfuse(int device, int by_device)
{
	struct epoll_event event = {.events = by_device ? EPOLLIN : 0, .data.u32 = MESSAGES};
	epoll_ctl(messages, EPOLL_CTL_MOD, device, &event);
}

/* ------------------------------------------------------------------ who reads on */

static int64_t now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 * MS_NS + now.tv_nsec;
}

/* Run beside a thread that goes on. */
static void note_thread(uint32_t thread, int64_t now)
{
	static uint32_t last, in_a_row;
	static int64_t answered, look_at;
	if (thread != last || now - answered > PAUSE_NS) {
		in_a_row = 0;
		look_at = now + FIRST_NS;
	}
	last = thread;
	answered = now;
	if (++in_a_row >= STEADY && now >= look_at) {
		look_at = now + LOOK_NS;
		relay_beside(thread);
	}
}

/* ------------------------------------------------------------------ messages */

static int answer(int device, const struct fuse_in_header *in, ssize_t length, int holds_reads)
{
	if (length < (ssize_t)sizeof(*in) ||
	    !((!holds_reads && relay_lane_answer(device, in, (size_t)length)) ||
	      relay_lookups_answer(device, in, (size_t)length) || relay_polls_answer(device, in, (size_t)length)))
		return 0;
	n_answers++;
	return 1;
}

/* Read a message, and return whether it is answered; otherwise it is kept, or libfuse is to read the error. */
static int take(int device, int holds_reads)
{
	ssize_t length = read(device, kept.message, kept.size);
	if (answer(device, kept.message, length, holds_reads))
		return 1;
	/* ENOENT, EAGAIN: the program was killed. */
	if (length < 0 && (errno == EAGAIN || errno == EINTR || errno == ENOENT))
		return 0;
	kept.is_free = 0;
	if (length > 0) {
		kept.length = (size_t)length;
		eventfd_write(has_kept, 1);
	}
	return 0;
}

/* Sleep for so long at most, and return what is readable. */
static uint32_t sleep_for(int64_t ns)
{
	struct epoll_event events[2];
	uint32_t found = 0;
	const int n = epoll_pwait(awaited, events, 2, (int)((ns + MS_NS - 1) / MS_NS), NULL);
	for (int i = 0; i < n; i++)
		found |= events[i].data.u32;
	return found;
}

int relay_at_once_wait(int device, int timeout_ms, int holds_reads)
{
	int has_answered = 0;
	int64_t now = now_ns();
	const int64_t end = now + (int64_t)timeout_ms * MS_NS;
	if (awaited < 0 || !kept.is_free)
		return 0;
	will_turn = 0;
	while (kept.is_free && !will_turn && now < end) {
		const uint32_t found = sleep_for(end - now);
		/* A message is something for the loop, too, until the first answer. */
		if (!(found & MESSAGES) || (found & LOOP && has_answered))
			break;
		const int is_answered = take(device, holds_reads);
		now = now_ns();
		if (!is_answered)
			continue;
		if (!has_answered)
			wake_libfuse(device, 0);
		has_answered = 1;
		note_thread(((const struct fuse_in_header *)kept.message)->pid, now);
	}
	if (has_answered)
		wake_libfuse(device, 1);
	return 1;
}

/* Have memory for messages as large as libfuse has. */
static void make_room(size_t room)
{
	if (kept.size != room) {
		free(kept.message);
		kept.message = malloc(room);
		kept.size = room;
	}
	kept.is_free = kept.message != NULL;
}

ssize_t relay_at_once_read(int device, void *message, size_t room, int holds_reads)
{
	const size_t length = kept.length;
	eventfd_t ignored;
	if (length) {
		memcpy(message, kept.message, length);
		kept.length = 0;
		eventfd_read(has_kept, &ignored);
		make_room(room);
		return (ssize_t)length;
	}
	make_room(room);
	const ssize_t got = read(device, message, room);
	if (!answer(device, message, got, holds_reads))
		return got;
	errno = EINTR;
	return -1;
}
