/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "lives.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LIFE_MS = 250, BROKEN_BYTES = 4096 };

/* What children tell of themselves. */
static struct account {
	uint64_t stores, broke;
	char broken[BROKEN_BYTES];
} * account;

static uint64_t state, ends_us;

void stored(uint64_t n)
{
	__atomic_add_fetch(&account->stores, n, __ATOMIC_RELAXED);
}

void must_fail(bool done, const char *what)
{
	if (!done || strstr(account->broken, what))
		return;
	account->broke++;
	strncat(account->broken, what, BROKEN_BYTES - strlen(account->broken) - 2);
	strcat(account->broken, "\n");
}

uint64_t now_us(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

bool lives_goes_on(void)
{
	return now_us() < ends_us;
}

static void random_start(uint64_t seed)
{
	state = seed * 0x9e3779b97f4a7c15ull + 1;
	if (!state)
		state = 1;
}

uint64_t random_word(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state * 0x2545f4914f6cdd1dull;
}

uint64_t random_below(uint64_t limit)
{
	return limit ? random_word() % limit : 0;
}

static void run_child(uint64_t seed, void (*live)(void))
{
	pid_t child = fork();
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		random_start(seed);
		/* A call that takes longer than this has its own fault to blame. */
		alarm(LIFE_MS / 1000 + 2);
		ends_us = now_us() + LIFE_MS * 1000;
		live();
		_exit(0);
	}
	if (child < 0)
		return;
	random_start(seed + 1);
	if (random_below(2)) {
		usleep((useconds_t)random_below(LIFE_MS * 1000)); /* any moment will do to be killed */
		kill(child, SIGKILL);
	}
	while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
		;
}

static bool is_over(void)
{
	struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
	char byte;
	return poll(&input, 1, 0) > 0 && read(STDIN_FILENO, &byte, 1) <= 0;
}

int lives_run(uint64_t seed, void (*live)(void))
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	account = mmap(NULL, sizeof(*account), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (account == MAP_FAILED) {
		perror("hostile");
		return 1;
	}
	puts("attacking");
	fflush(stdout);
	uint64_t lives = 0;
	for (; !is_over(); lives++)
		run_child(seed * 1000003 + lives, live);
	printf("lives %llu stores %llu broke %llu\n%s", (unsigned long long)lives, (unsigned long long)account->stores,
	       (unsigned long long)account->broke, account->broken);
	return 0;
}
