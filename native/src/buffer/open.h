/* SPDX-License-Identifier: MIT */
/* Mapping a buffer's file and setting up its struct rchan_buf. relay_buf_open() for tools is in <relayfs/store.h>.
 * The functions return 0 or -errno. */
#ifndef RELAYFS_BUFFER_OPEN_H
#define RELAYFS_BUFFER_OPEN_H

#include "buffer/buffer.h"

/* Map an open memN file. fd belongs to buf, and is closed on failure. Errors as relay_mapping_map()
 * and relay_check_geometry(). */
int relay_buf_init(struct rchan_buf *buf, int fd);
void relay_buf_fini(struct rchan_buf *buf);

/* As relay_buf_view(), for a moment: fd is closed in any case. */
struct rchan_buf *relay_buf_glance(int fd);

/* Open and map mem_path, a file of a mount or of a store. If the mount's file cannot be mapped, it maps the store's
 * file instead; -ENODEV: this user may not open that. */
int relay_buf_attach(struct rchan_buf *buf, const char *mem_path, bool in_mount);

/*
 * Keep memN open for the file server until this process has ended, even if the process closes its descriptors. mem_fd
 * is open on mem_path, a memN of a mount. The function maps memN.TOKEN, which keeps that file open; the server takes
 * memN for open until this mapping is gone. (A mapping of memN itself maps the store's file, so the server does not
 * learn of its end.) After a failure the server takes memN for closed when its last descriptor is closed.
 */
int relay_buf_hold(struct rchan_buf *buf, const char *mem_path, int mem_fd);

#endif
