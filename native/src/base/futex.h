/* SPDX-License-Identifier: MIT */
/* Sleep on words of shared memory, and fence who writes them. Knows no rings. */
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

/* Let relay_fence_writers() reach this process; once before its first write. */
void relay_fence_register(void);

/* Every store that a thread of a registered process made before this is seen after it. false: not possible here. */
bool relay_fence_writers(void);

/* How long to sleep for a writer's wake-up: timeout_ms, or, where writers cannot be fenced, at most 10 ms. */
int relay_fenced_timeout(int timeout_ms);

/* Sleep while all n words (1 .. RELAY_MAX_WORDS) have their values, at most timeout_ms (-1: no limit). 0, or -EINTR. */
int relay_futex_wait_any(const struct relay_futex *words, size_t n, int timeout_ms);

/* CLOCK_MONOTONIC, for deadlines. */
int64_t relay_now_ms(void);

#endif
