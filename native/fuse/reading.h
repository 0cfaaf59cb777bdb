/* SPDX-License-Identifier: MIT */
/* The reply to a READ whose bytes relay_tap_read() (tap.h) has found in a buffer: there is one at most. */
#ifndef RELAY_TAP_READING_H
#define RELAY_TAP_READING_H

#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

/* 1: the reply to this READ is to have bytes of a buffer. */
int relay_reading_is_of(uint64_t unique);

/* Send the reply, and consume its bytes if the kernel accepts it. header: the struct fuse_out_header, whose `len` is set.
 * Returns as writev(2). */
ssize_t relay_reading_send(int fd, const struct iovec *header);

/* Forget the reply, if there is one: its bytes stay unread. */
void relay_reading_forget(void);

#endif
