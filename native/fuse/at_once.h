/* SPDX-License-Identifier: MIT */
/*
 * Requests that are answered at once, while libfuse reads its next message: lookups of relay files (lookups.h), READs that
 * go on (lane.h), and FUSE_POLLs (polls.h). To turn the server's loop takes longer than such an answer, and a program that has it mostly asks again soon. So
 * this thread waits a moment for the next request. It goes back to the loop when the loop has something to do, or after
 * STAY_NS, because what the loop does by the clock waits meanwhile.
 */
#ifndef RELAY_TAP_AT_ONCE_H
#define RELAY_TAP_AT_ONCE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* let_run, go_on: let other threads of Python run while this one sleeps, and end that: PyEval_SaveThread() and
 * PyEval_RestoreThread(). */
void relay_tap_share(void *(*let_run)(void), void (*go_on)(void *));

/* From now on wait for the next request, unless one of these descriptors is readable, or has_tasks() returns 1, which is asked
 * before this thread waits for long. device: the descriptor of /dev/fuse. Before this is called there is no waiting. */
void relay_tap_turn_for(int device, const int *fds, size_t n, int (*has_tasks)(void));

/* How many requests were answered at once. */
uint64_t relay_tap_answers(void);

/* Read the next message of the kernel that is not answered at once. Returns as read(2) of `fd`; EINTR: the loop is to turn
 * before the next call. holds_reads: a handler answers the next READ, because isatty(3) was called. */
ssize_t relay_at_once_read(int fd, void *message, size_t room, int holds_reads);

#endif
