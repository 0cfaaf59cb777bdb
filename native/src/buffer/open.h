/* SPDX-License-Identifier: MIT */
/* Taking a buffer into this process. */
#ifndef RELAYFS_BUFFER_OPEN_H
#define RELAYFS_BUFFER_OPEN_H

#include "buffer/buffer.h"

/* Take over an open mem file; fd belongs to buf, also on failure. */
int relay_buf_init(struct rchan_buf *buf, int fd);
void relay_buf_fini(struct rchan_buf *buf);

/* The same for mem_path, which lies in a mount or in a store: maps it, or the store's file behind it where the mount
 * cannot map, if this user may open that. */
int relay_buf_attach(struct rchan_buf *buf, const char *mem_path, bool in_mount);

/*
 * Tell the server when this process has gone, though it keeps no descriptor: mem_fd is open on mem_path, a memN of a mount,
 * and memN.TOKEN, which a mapping holds open, lets the server take memN for open until that mapping has gone, too. (A
 * mapping of memN itself is one of the store's file, and says nothing to the server.) 0 or -errno; then the server will
 * not know.
 */
int relay_buf_hold(struct rchan_buf *buf, const char *mem_path, int mem_fd);

#endif
