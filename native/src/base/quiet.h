/* SPDX-License-Identifier: MIT */
/*
 * Quiet threads: those that called relay_trace_prepare(), and therefore make no system calls when they write.
 *
 * A quiet thread may enter strict mode of seccomp(2), in which any system call but read, write, _exit and sigreturn
 * kills it. To find that out, it keeps its /proc/thread-self/status open, which it may still read. On x86-64, strict
 * mode also forbids reading the time stamp counter, and so all clocks except the coarse ones. Such a thread is called
 * blind.
 */
#ifndef RELAYFS_BASE_QUIET_H
#define RELAYFS_BASE_QUIET_H

#include "base/libc.h"

#include <stdbool.h>
#include <stdint.h>

extern __thread bool relay_quiet_self RELAY_TLS;
extern __thread bool relay_blind_self RELAY_TLS;

/* True if a system call may kill the calling thread. Such a thread does not check whether the holder of a lock is dead,
 * does not block signals and does not wake readers. */
static inline bool relay_is_quiet(void)
{
	return relay_quiet_self;
}

/* Make the calling thread quiet. */
void relay_quiet_begin(void);

/* True if the calling thread, which is quiet, may make system calls: its seccomp(2) state is that of
 * relay_quiet_begin(). False if it is not, or that cannot be found out. Makes only calls that strict mode permits,
 * unless the thread may make others. */
bool relay_quiet_may_call(void);

/* Find out whether the calling thread, which is quiet, has become blind: then relay_is_blind() is true. */
void relay_quiet_look(void);

static inline bool relay_is_blind(void)
{
	return relay_blind_self;
}

/* Make the calling thread an ordinary one, at its end or in the child of a fork(). */
void relay_quiet_end(void);

#endif
