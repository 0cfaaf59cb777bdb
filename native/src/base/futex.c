/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "base/futex.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <relayfs/store.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
	UNFENCED_SLEEP_MS = 10, /* the longest sleep without membarrier(2) */
	UNWATCHED_SLEEP_MS = 10 /* the longest sleep without futex_waitv(2), which alone watches several words */
};

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif

static long membarrier(int command)
{
	return syscall(SYS_membarrier, command, 0, 0);
}

void relay_fence_register(void)
{
	/* The result is not needed: if the kernel does not support it, relay_fence_is_available() is false in all
	 * processes. */
	membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED);
}

bool relay_fence_writers(void)
{
	return membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED) == 0;
}

int relay_fence_is_available(void)
{
	static int answer = -1; /* relaxed, because each thread that asks the kernel gets the same answer */
	int known = __atomic_load_n(&answer, __ATOMIC_RELAXED);
	if (known < 0) {
		long commands = membarrier(MEMBARRIER_CMD_QUERY);
		known = commands > 0 && commands & MEMBARRIER_CMD_GLOBAL_EXPEDITED;
		__atomic_store_n(&answer, known, __ATOMIC_RELAXED);
	}
	return known;
}

static int at_most(int timeout_ms, int most_ms)
{
	return timeout_ms < 0 || timeout_ms > most_ms ? most_ms : timeout_ms;
}

int relay_fenced_timeout(int timeout_ms)
{
	return relay_fence_is_available() ? timeout_ms : at_most(timeout_ms, UNFENCED_SLEEP_MS);
}

int64_t relay_now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000ll + now.tv_nsec / 1000000;
}

void relay_wake_word(uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static int sleep_one(const struct relay_futex *one, int timeout_ms)
{
	struct timespec relative = {.tv_sec = timeout_ms / 1000, .tv_nsec = timeout_ms % 1000 * 1000000l};
	long woken = syscall(SYS_futex, one->word, FUTEX_WAIT, one->value, timeout_ms < 0 ? NULL : &relative, NULL, 0);
	return woken < 0 && errno == EINTR ? -EINTR : 0;
}

int relay_futex_wait_any(const struct relay_futex *words, size_t n, int timeout_ms)
{
	if (n == 1)
		return sleep_one(words, timeout_ms);
	struct futex_waitv waiters[RELAY_MAX_WORDS] = {0};
	for (size_t i = 0; i < n; i++)
		waiters[i] =
		    (struct futex_waitv){.val = words[i].value, .uaddr = (uintptr_t)words[i].word, .flags = FUTEX_32};
	struct timespec until;
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += timeout_ms / 1000;
	until.tv_nsec += timeout_ms % 1000 * 1000000l;
	if (until.tv_nsec >= 1000000000l) {
		until.tv_sec++;
		until.tv_nsec -= 1000000000l;
	}
	if (syscall(SYS_futex_waitv, waiters, n, 0, timeout_ms < 0 ? NULL : &until, CLOCK_MONOTONIC) >= 0)
		return 0;
	if (errno == ENOSYS) /* before Linux 5.16: sleep on one word; the caller examines the others at each return */
		return sleep_one(&words[n - 1], at_most(timeout_ms, UNWATCHED_SLEEP_MS));
	return errno == EINTR ? -EINTR : 0;
}
