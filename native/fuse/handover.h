/* SPDX-License-Identifier: MIT */
/*
 * What a server of a mount leaves to the next one if it dies, as far as libfuse and the kernel are concerned: the first
 * page of a memory file that both map (fs/handover.py has the rest), and the descriptor of /dev/fuse.
 *
 * The successor lets libfuse begin as the first server did: libfuse reads the kept FUSE_INIT, and its answer, which the
 * kernel had long ago, is not sent. Then the kernel is asked to send all requests again that were not answered. Those
 * that a server has asked for which died before it got them are read before, and so are among these.
 */
#ifndef RELAY_TAP_HANDOVER_H
#define RELAY_TAP_HANDOVER_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* The second half of the page is fs/taking.py's. */
enum { RELAY_HANDOVER_BYTES = 2048, RELAY_HANDOVER_INIT_MAX = 1024 };

/* A reply to READ that is being sent: once it is, the data of a buffer before a stream position are consumed. */
struct relay_handover_reply {
	uint64_t unique; /* of the READ; 0: there is none */
	uint64_t number; /* of the buffer, as relay_tap_read() got it */
	uint64_t end;    /* the stream position */
};

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

/* The reply that the server before was sending when it died, or had sent; unique is 0: none. */
struct relay_handover_reply relay_handover_last_reply(void);

/* ---- for tap.c ---- */

/* Note a reply that is going to be sent. */
void relay_handover_begin_reply(struct relay_handover_reply reply);
/* Drop the note: the data of the reply are consumed, or it was not sent. */
void relay_handover_end_reply(void);

/* The descriptor that relay_handover_use() was given. */
int relay_handover_fd(void);
/* Keep a FUSE_INIT of `length` bytes. */
void relay_handover_keep_init(const void *message, size_t length);
/* Store the kept FUSE_INIT in `message`, once, and return its length; 0: it comes from the kernel. */
ssize_t relay_handover_replay_init(void *message, size_t room);
/* Whether the kernel has the answer to this request, the kept FUSE_INIT; true once. */
int relay_handover_is_answered(uint64_t unique);

#endif
