/* SPDX-License-Identifier: MIT */
/* What files a channel gets: as create_buf_file says, or base_filename in parent. */
#ifndef RELAYFS_CHANNEL_CREATE_BUF_FILE_H
#define RELAYFS_CHANNEL_CREATE_BUF_FILE_H

#include "channel/channel.h"

/*
 * Ask create_buf_file for the files of buffers 0 .. n-1 and make out of the answers what channel they are.
 *
 * path       receives its path, to be freed
 * buffers    receives RELAY_PERCPU, or, if create_buf_file wants one for all CPUs, _GLOBAL or _SINGLE
 *
 * 0 or -errno: what create_buf_file left in errno, else -EACCES, if it returned NULL; -EINVAL: the files are not
 * those of one channel. On failure remove_buf_file has been called for those it had made.
 */
int relay_create_buf_file_ask(struct rchan *chan, const char *base_filename, const char *parent, uint32_t n,
                              char **path, uint32_t *buffers);

/* "PARENT/NAME"; without a parent, below the default mount. NULL: no memory, or there is no such place. */
char *relay_name_below(const char *parent, const char *name);

/* Does create_buf_file want one buffer for all CPUs? 1, 0 or -errno. Asked of a channel that has no files yet. */
int relay_create_buf_file_ask_global(struct rchan *chan);

/* Call remove_buf_file for each file, and forget them. exist: whether they came to be and are there still; if not,
 * others may have their names. */
void relay_create_buf_file_remove(struct rchan *chan, bool exist);

#endif
