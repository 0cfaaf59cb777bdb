/* SPDX-License-Identifier: MIT */
/* What bench_latency and bench_latency_bare share: futex words in a file. Define _GNU_SOURCE before it. */
#ifndef BENCH_LATENCY_H
#define BENCH_LATENCY_H

#include "bench.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

struct words {
	uint32_t seq;      /* futex: how often the file has become readable. Writer: bench_latency */
	uint32_t is_ready; /* the file is readable. Writer: bench_latency */
};

static inline struct words *map_words(const char *path)
{
	const int fd = open(path, O_RDWR | O_CLOEXEC);
	struct words *words = mmap(NULL, sizeof(*words), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (words == MAP_FAILED)
		die(path);
	close(fd);
	return words;
}

static inline void wait_for_word(uint32_t *word, uint32_t value)
{
	syscall(SYS_futex, word, FUTEX_WAIT, value, NULL, NULL, 0);
}

static inline void wake_word(uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

#endif
