/* SPDX-License-Identifier: MIT */
/* Changes of replies by what the request was, whichever handler made them. */
#ifndef RELAY_TAP_REPLIES_H
#define RELAY_TAP_REPLIES_H

#include <stdint.h>
#include <sys/uio.h>

/* Change a reply: iov[0] is its struct fuse_out_header. */
void relay_tap_change_reply(uint32_t opcode, const struct iovec *iov, int count);

#endif
