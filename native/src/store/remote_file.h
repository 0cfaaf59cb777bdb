/* SPDX-License-Identifier: MIT */
/* Using a channel that this process cannot map, through files of its mount: the statistics in .channels/PATH/ and the
 * relay files. Functions return 0, or as described, or -errno as open(2), read(2) or write(2). place: in a mount. */
#ifndef RELAYFS_STORE_REMOTE_FILE_H
#define RELAYFS_STORE_REMOTE_FILE_H

#include "store/place.h"

#include <stddef.h>

/* The longest record, in bytes, that one write(2) sends to the server whole. */
enum { RELAY_REMOTE_RECORD_MAX = (1 << 20) - 4096 };

/* Read the first line of the statistic .channels/PATH/NAME, without its newline, cut to `size` - 1 bytes. */
int relay_remote_text(const struct relay_place *place, const char *name, char *text, size_t size);
/* Read a statistic that is a decimal number. -EBADMSG: its text is not a number. */
int relay_remote_number(const struct relay_place *place, const char *name, uint64_t *number);

/* Check that the channel's type is `type`, "relay" or "ring". -EMEDIUMTYPE: it is the other; -EBADMSG: neither. */
int relay_remote_check_type(const struct relay_place *place, const char *type);

/* Open the relay file of a buffer, with `flags` and O_NONBLOCK. Returns its descriptor. */
int relay_remote_file_open(const struct relay_place *place, uint32_t buffer, int flags);

/* Open the relay file of a buffer for relay_remote_file_write(). Returns its descriptor. */
int relay_remote_file_append(const struct relay_place *place, uint32_t buffer);

/* Write one record of 1 byte or more. -ENOSPC: the buffer is full. Async-signal-safe; leaves errno as it was. */
int relay_remote_file_write(int fd, const void *data, size_t length);

#endif
