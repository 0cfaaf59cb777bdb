/* SPDX-License-Identifier: MIT */
/* Sleeping on words of shared memory (futex(2)), and ordering the stores of other processes by membarrier(2). */
#ifndef RELAYFS_BASE_FUTEX_H
#define RELAYFS_BASE_FUTEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RELAY_MAX_WORDS = 128 };

/* A futex word and the value at which to sleep. */
struct relay_futex {
	uint32_t *word;
	uint32_t value;
};

/* Register this process for relay_fence_writers() of all processes. Call it once, before the process's first write. */
void relay_fence_register(void);

/* A full memory fence on each CPU that runs a thread of a registered process. The caller's later loads see what these
 * threads stored before the fence; their later loads see what the caller stored before. Returns false if the kernel
 * cannot do it. */
bool relay_fence_writers(void);

/* The time to sleep for a writer's wake-up: timeout_ms (-1: no limit), or at most 10 ms if membarrier(2) is not
 * available. */
int relay_fenced_timeout(int timeout_ms);

/*
 * Sleep while all n words (1 .. RELAY_MAX_WORDS) have their values, for timeout_ms at most (-1: no limit). Returns 0,
 * also if the time has passed or, before Linux 5.16, without a reason; or -EINTR: a signal was caught.
 */
int relay_futex_wait_any(const struct relay_futex *words, size_t n, int timeout_ms);

/* CLOCK_MONOTONIC in milliseconds, for deadlines. */
int64_t relay_now_ms(void);

#endif
