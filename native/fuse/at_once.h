/* SPDX-License-Identifier: MIT */
/*
 * Requests that are answered at once, without Python: lookups of relay files (lookups.h), READs that go on (lane.h), and
 * FUSE_POLLs (polls.h). To turn the server's loop takes longer than such an answer. So when the loop has nothing to do, it
 * sleeps in relay_at_once_wait(), which reads the messages of the kernel and answers those that it can. It keeps the first
 * other one, for which libfuse, and pyfuse3's task with it, is woken:
 *
 *     kernel  -- read -->  relay_at_once_wait()  -- writev -->  kernel
 *                           | kept
 *                          relay_at_once_read()  -->  tap_read()  -->  libfuse
 *
 * All functions are called in the loop's thread.
 */
#ifndef RELAY_TAP_AT_ONCE_H
#define RELAY_TAP_AT_ONCE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* From now on relay_tap_wait() waits. loop: a descriptor that is readable when the loop has something to do. */
void relay_tap_wait_for(int device, int loop);

/* Answer requests for so long, or until the loop has something to do, and return 1. 0: it cannot wait now, and the loop is to wait
 * for what fuse_session_fd() returns, too. Python's lock must not be held. */
int relay_tap_wait(int timeout_ms);

/* Have relay_tap_wait() return after the present answer: the function that makes it has made a task of the loop runnable. */
void relay_tap_turn(void);

/* How many requests were answered at once. */
uint64_t relay_tap_answers(void);

/* ---- for tap.c ---- */

/* Return a descriptor that is readable while there are messages for relay_at_once_read(), or -1. device: the descriptor of
 * /dev/fuse. */
int relay_at_once_open(int device);

/* relay_tap_wait(). holds_reads: a handler answers the next READ, because isatty(3) was called. */
int relay_at_once_wait(int device, int timeout_ms, int holds_reads);

/* Read the next message of the kernel that is not answered at once. Returns as read(2) of `device`; EINTR: there is none yet. */
ssize_t relay_at_once_read(int device, void *message, size_t room, int holds_reads);

#endif
