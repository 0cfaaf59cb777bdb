/* SPDX-License-Identifier: MIT */
/*
 * Reading a relay file whose memory this process cannot map: by read(2), into private memory. What is taken is consumed
 * at once, for two readers could not share it otherwise.
 */
#ifndef RELAYFS_STORE_REMOTE_READER_H
#define RELAYFS_STORE_REMOTE_READER_H

#include <stdbool.h>
#include <stddef.h>

struct relay_remote_reader;

/* 0 or -errno, as open(2). */
int relay_remote_reader_open(struct relay_remote_reader **reader, const char *relay_file);
void relay_remote_reader_close(struct relay_remote_reader *reader);

/* 1: *data, of *length bytes, stays until done(); 0: there is nothing now; or -errno, as read(2). */
int relay_remote_reader_take(struct relay_remote_reader *reader, const void **data, size_t *length);
int relay_remote_reader_done(struct relay_remote_reader *reader); /* -EINVAL: nothing was taken */
bool relay_remote_reader_holds(const struct relay_remote_reader *reader);

/* Sleep until something may have changed, at most so long. 0 or -EINTR. */
int relay_remote_reader_wait(struct relay_remote_reader *reader, int ms);

/* Is the channel removed, or damaged, and everything read? */
bool relay_remote_reader_finished(const struct relay_remote_reader *reader);

#endif
