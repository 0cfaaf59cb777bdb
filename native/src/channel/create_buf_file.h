/* SPDX-License-Identifier: MIT */
/* Choosing the relay files of a channel: by create_buf_file, or base_filename in parent. */
#ifndef RELAYFS_CHANNEL_CREATE_BUF_FILE_H
#define RELAYFS_CHANNEL_CREATE_BUF_FILE_H

#include "channel/channel.h"

/*
 * Call create_buf_file for buffers 0 .. n-1 and derive the channel's path from the results.
 *
 * path       receives the channel's path, to be freed
 * buffers    receives RELAY_PERCPU, or, if create_buf_file sets *is_global, RELAY_GLOBAL or RELAY_SINGLE
 *
 * 0 or -errno: the errno that create_buf_file left, else -EACCES, if it returned NULL; -EINVAL: the files are not
 * those of one channel. On failure remove_buf_file has been called for the files named before.
 */
int relay_create_buf_file_ask(struct rchan *chan, const char *base_filename, const char *parent, uint32_t n,
                              char **path, uint32_t *buffers);

/* Return "PARENT/NAME"; without a parent, below the default mount. NULL: no memory, or no default mount. */
char *relay_name_below(const char *parent, const char *name);

/* Call create_buf_file for a channel that has no files yet. Returns 1: one buffer for all CPUs; 0: one for each; or
 * -errno. */
int relay_create_buf_file_ask_global(struct rchan *chan);

/* Call remove_buf_file for each file, and free their names. exist: the channel's files exist; otherwise, files with
 * these names belong to another channel, and relay_remove_file() leaves them. */
void relay_create_buf_file_remove(struct rchan *chan, bool exist);

#endif
