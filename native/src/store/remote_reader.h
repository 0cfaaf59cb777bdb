/* SPDX-License-Identifier: MIT */
/*
 * Reading a channel that this process cannot map: read(2) of its relay file into memory of this process. The bytes that
 * relay_remote_reader_take() returns are consumed at once, unlike those of a reader of mapped memory, because the
 * server gives them to no other reader.
 */
#ifndef RELAYFS_STORE_REMOTE_READER_H
#define RELAYFS_STORE_REMOTE_READER_H

#include <stdbool.h>
#include <stddef.h>

struct relay_remote_reader;

/* Open a relay file. 0 or -errno, as open(2), and -ENOMEM. */
int relay_remote_reader_open(struct relay_remote_reader **reader, const char *relay_file);
void relay_remote_reader_close(struct relay_remote_reader *reader);

/* Read the next bytes. 1: *data and *length receive them, valid until relay_remote_reader_done(); 0: there are none
 * now; or -errno, as read(2). */
int relay_remote_reader_take(struct relay_remote_reader *reader, const void **data, size_t *length);
/* End the use of the bytes. 0; -EINVAL: relay_remote_reader_take() has not returned any. */
int relay_remote_reader_done(struct relay_remote_reader *reader);
/* True after relay_remote_reader_take() has returned bytes, until relay_remote_reader_done(). */
bool relay_remote_reader_holds(const struct relay_remote_reader *reader);

/* Sleep until there may be more bytes, at most `ms` milliseconds and at most 50. 0 or -errno, as poll(2): -EINTR. */
int relay_remote_reader_wait(struct relay_remote_reader *reader, int ms);

/* True if the channel is removed or damaged, and everything has been read. */
bool relay_remote_reader_finished(const struct relay_remote_reader *reader);

#endif
