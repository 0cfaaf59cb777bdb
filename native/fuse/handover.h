/* SPDX-License-Identifier: MIT */
/*
 * What a server of a mount leaves to the next one if it dies, as far as libfuse and the kernel are concerned: the first
 * page of a memory file that both map (fs/handover.py has the rest), and the descriptor of /dev/fuse.
 *
 * The successor lets libfuse begin as the first server did: libfuse reads the kept FUSE_INIT, and its answer, which the
 * kernel had long ago, is not sent. Then the kernel is asked to send all requests again that were not answered.
 */
#ifndef RELAY_TAP_HANDOVER_H
#define RELAY_TAP_HANDOVER_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { RELAY_HANDOVER_BYTES = 4096, RELAY_HANDOVER_INIT_MAX = 1024 };

/* Keep what is to be handed over in the RELAY_HANDOVER_BYTES at `memory`; fd: the descriptor of /dev/fuse of the server
 * before, -1: this is the first one. Called before fuse_session_mount(). */
void relay_handover_use(void *memory, int fd);

/* 1: the kernel can send requests again, which a successor needs. Valid after INIT. */
int relay_handover_is_possible(void);

/* Ask the kernel to send all requests again that were not answered. 0 or -errno. */
int relay_handover_resend(int fd);

/* 1: the kernel waits for the answer to this request, which it has sent; 0: it has the answer. -errno. */
int relay_handover_awaits(int fd, uint64_t unique);

/* Have the kernel ask again what a polled file is ready for. */
void relay_handover_notify_poll(int fd, uint64_t poll_handle);

/* ---- for tap.c ---- */

/* The descriptor that relay_handover_use() was given. */
int relay_handover_fd(void);
/* Keep a FUSE_INIT of `length` bytes. */
void relay_handover_keep_init(const void *message, size_t length);
/* Store the kept FUSE_INIT in `message`, once, and return its length; 0: it comes from the kernel. */
ssize_t relay_handover_replay_init(void *message, size_t room);
/* Whether the kernel has the answer to this request, the kept FUSE_INIT; true once. */
int relay_handover_is_answered(uint64_t unique);

#endif
