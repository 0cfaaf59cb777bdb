/* SPDX-License-Identifier: MIT */
/* Threads that make no system calls when they write: those that called relay_trace_prepare(). Knows no rings. */
#ifndef RELAYFS_QUIET_H
#define RELAYFS_QUIET_H

#include <stdbool.h>

extern __thread bool relay_quiet_self __attribute__((tls_model("initial-exec")));

/* May the calling thread be killed for a system call (seccomp(2), strict)? Then nothing that it may do without is asked of the
 * kernel: whether the holder of a lock is dead, that signals be blocked, that readers be woken. */
static inline bool relay_is_quiet(void)
{
	return relay_quiet_self;
}

/* A moment within a loop that spins. */
static inline void relay_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#else
	__asm__ volatile("yield");
#endif
}

#endif
