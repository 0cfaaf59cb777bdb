/* SPDX-License-Identifier: MIT */
/* Memory of a relay_app's reader, into which the next data of its buffer are copied, many pieces at once. */
#ifndef RELAYFS_APPS_APP_ROOM_H
#define RELAYFS_APPS_APP_ROOM_H

#include "buffer/buffer.h"

#include <sys/types.h>

/* What most file systems allocate at least, and what disks need for O_DIRECT: a multiple of their own blocks. */
enum { APP_BLOCK_BYTES = 4096 };

struct app_room {
	unsigned char *bytes; /* begins at a multiple of APP_BLOCK_BYTES; NULL: none */
	size_t size;
	struct relay_span *spans; /* NULL: relay_app_room_take() may not be called */
};

/* Allocate memory for `size` bytes, wherever they begin in a block. 0 or -ENOMEM. */
int relay_app_room_open(struct app_room *room, size_t size, bool takes);
void relay_app_room_close(struct app_room *room);

/* The bytes to take at once from a buffer: a part of it, as their room is free only when all of them are consumed. */
size_t relay_app_room_bytes(const struct rchan_buf *buf);

/* Where data are copied that will begin at an offset of a file: as far behind the beginning of a block. */
unsigned char *relay_app_room_at(const struct app_room *room, off_t offset);

/*
 * Begin to consume the next data, and copy them to relay_app_room_at(offset); with `times`, without the records' heads.
 * finished_only: those of finished sub-buffers only. Returns the number of bytes; then relay_consume_end() or
 * relay_consume_abort() has to be called. 0: there are none, or relay_consume_piece() has to be called for them, because they
 * were overwritten meanwhile or are in too many pieces. Errors as of relay_consume_begin().
 */
ssize_t relay_app_room_take(struct app_room *room, struct rchan_buf *buf, off_t offset, bool finished_only);

#endif
