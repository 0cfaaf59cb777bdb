/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "beside.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* HERE: so many calls are skipped after one that found both threads on one CPU. LAST: at most so many after a move.
 * PROCESSOR: the number of the field in stat (proc(5)), counted from the third one on, which follows the name. */
enum { HERE = 1, LAST = 1023, PROCESSOR = 39 - 3 };

/* Linux wakes a program on another CPU if that one is idle, and not if it is one of a virtual machine that the host has
 * stopped since. The CPU that this thread has left is idle, and a host waits before it stops it (halt_poll_ns of KVM), some
 * 200 us or, as was seen, 720. If the other thread was woken before, it would move there. */
enum { LEFT_US = 1000 };

/* Read the beginning of a file as text. 0: it cannot be read. */
static int read_text(const char *path, char *text, size_t room)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t got = fd < 0 ? -1 : read(fd, text, room - 1);
	if (fd >= 0)
		close(fd);
	text[got > 0 ? got : 0] = 0;
	return got > 0;
}

/* Return the CPU where a thread has run last; -1: it is not visible. */
static int cpu_of(uint32_t thread)
{
	char path[64], text[1024];
	snprintf(path, sizeof(path), "/proc/%u/task/%u/stat", thread, thread);
	const char *at = read_text(path, text, sizeof(text)) ? strrchr(text, ')') : NULL;
	for (int i = 0; at && i <= PROCESSOR; i++)
		at = strchr(at + 1, ' ');
	return at ? atoi(at + 1) : -1;
}

/* Whether a thread may run on all CPUs: 0 to the last one, all of which are online. */
static int has_all(const cpu_set_t *set)
{
	char text[64];
	int last;
	return read_text("/sys/devices/system/cpu/online", text, sizeof(text)) && sscanf(text, "0-%d", &last) == 1 &&
	       !strchr(text, ',') && CPU_COUNT(set) == last + 1;
}

/* Move this thread, and let the CPU that it has left rest. */
static void move(int cpu)
{
	cpu_set_t set;
	if (cpu >= CPU_SETSIZE || sched_getaffinity(0, sizeof(set), &set) || !has_all(&set))
		return;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	sched_setaffinity(0, sizeof(set), &set);
	/* All CPUs, also those that are added later. */
	memset(&set, 0xff, sizeof(set));
	sched_setaffinity(0, sizeof(set), &set);
	usleep(LEFT_US);
}

void relay_beside(uint32_t thread)
{
	static unsigned skip, pause;
	if (skip) {
		skip--;
		return;
	}
	int cpu = cpu_of(thread);
	if (cpu < 0 || cpu == sched_getcpu()) {
		skip = HERE;
		pause /= 2;
		return;
	}
	move(cpu);
	skip = pause;
	pause = pause < LAST ? 2 * pause + 1 : LAST;
}
