/* SPDX-License-Identifier: MIT */
/* What a sub-buffer is read as in a format with packets. */
#ifndef RELAYFS_BUFFER_PACKET_H
#define RELAYFS_BUFFER_PACKET_H

#include "buffer/buffer.h"

#include <relayfs/trace_store.h>

/*
 * Say the head of finished sub-buffer `number`. 1; 0: that is not possible now, as somebody begins the next one; -EBADMSG.
 *
 * head   where the buffer's head was when it was seen to be finished
 * bytes  of its data, the head itself included
 * more   records lost so far that were not refused: overwritten, torn
 */
int relay_packet_say(struct rchan_buf *buf, struct relay_packet *packet, uint64_t number, uint64_t head, uint64_t bytes,
                     uint64_t more);

#endif
