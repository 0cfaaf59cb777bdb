/* SPDX-License-Identifier: MIT */
/*
 * Threads that make no system calls when they write: those that called relay_trace_prepare(). Knows no rings.
 *
 * Such a thread may have entered seccomp(2)'s strict mode since, in which it is killed for any call but read, write, _exit and
 * sigreturn. It holds its own /proc/thread-self/status open, which it may read, to find that out. On x86-64 the mode also takes
 * the time stamp counter away, and with it all clocks but the coarse ones: the thread is blind.
 */
#ifndef RELAYFS_BASE_QUIET_H
#define RELAYFS_BASE_QUIET_H

#include "base/libc.h"

#include <stdbool.h>
#include <stdint.h>

extern __thread bool relay_quiet_self RELAY_TLS;
extern __thread bool relay_blind_self RELAY_TLS;

/* May the calling thread be killed for a system call? Then nothing that it may do without is asked of the kernel: whether the
 * holder of a lock is dead, that signals be blocked, that readers be woken. */
static inline bool relay_is_quiet(void)
{
	return relay_quiet_self;
}

/* The calling thread is quiet from now on. */
void relay_quiet_begin(void);

/* Of a quiet thread: may it make system calls after all? false also if that cannot be found out. Makes none that it may not. */
bool relay_quiet_may_call(void);

/* Find out whether a quiet thread is blind by now. */
void relay_quiet_look(void);

static inline bool relay_is_blind(void)
{
	return relay_blind_self;
}

/* The thread ends, or it is the child of a fork(): it is as any other. */
void relay_quiet_end(void);

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
