/* SPDX-License-Identifier: MIT */
/* The files by which a mount lets programs use a channel that they cannot map: its statistics and its relay files. */
#ifndef RELAYFS_STORE_REMOTE_FILE_H
#define RELAYFS_STORE_REMOTE_FILE_H

#include "store/place.h"

#include <stddef.h>

/* The longest record that write(2) carries. */
enum { RELAY_REMOTE_RECORD_MAX = (1 << 20) - 4096 };

/* A statistic, as .channels/PATH/NAME shows it. 0 or -errno. */
int relay_remote_text(const struct relay_place *place, const char *name, char *text, size_t size);
int relay_remote_number(const struct relay_place *place, const char *name, uint64_t *number);

/* Is the channel of this type, "relay" or "ring"? 0, -EMEDIUMTYPE: it is of the other, or -errno. */
int relay_remote_check_type(const struct relay_place *place, const char *type);

/* Open the relay file of a buffer, with O_NONBLOCK. Its descriptor, or -errno. */
int relay_remote_file_open(const struct relay_place *place, uint32_t buffer, int flags);

/* The same for records to be written, each by one write(2). */
int relay_remote_file_append(const struct relay_place *place, uint32_t buffer);

/* Write one record of 1 byte or more. 0, or the error that write(2) has. Async-signal-safe. */
int relay_remote_file_write(int fd, const void *data, size_t length);

#endif
