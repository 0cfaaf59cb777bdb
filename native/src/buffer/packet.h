/* SPDX-License-Identifier: MIT */
/* The header of a sub-buffer in a format with packets (struct relay_packet). */
#ifndef RELAYFS_BUFFER_PACKET_H
#define RELAYFS_BUFFER_PACKET_H

#include "buffer/buffer.h"

#include <relayfs/trace_store.h>

/*
 * Fill in the header of finished sub-buffer `number`. Returns 1; 0: not possible now, because a thread begins the
 * next sub-buffer; -EBADMSG.
 *
 * head   the buffer's head when the caller saw that the sub-buffer is finished
 * bytes  length of its data with the header
 * more   records lost so far that were not refused: overwritten or torn
 */
int relay_packet_say(struct rchan_buf *buf, struct relay_packet *packet, uint64_t number, uint64_t head, uint64_t bytes,
                     uint64_t more);

#endif
