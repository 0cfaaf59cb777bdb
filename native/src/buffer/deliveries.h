/* SPDX-License-Identifier: MIT */
/*
 * Notes about records that users wrote by write(2), so that the maker of the channel can call deliver() for each record
 * (classic.h). The notes are a queue in shared memory, relay_control.notes.
 *
 *     file server                                      the maker's thread
 *     write(2): reserve, copy, commit
 *     store {position, length}, notes_added++, wake   ->   deliver(), notes_told++
 */
#ifndef RELAYFS_BUFFER_DELIVERIES_H
#define RELAYFS_BUFFER_DELIVERIES_H

#include "buffer/buffer.h"

/* True if the channel has a maker that wants notes of this buffer's records. */
bool relay_deliveries_wanted(const struct rchan_buf *buf);

/* True if the queue is full and the maker lives, so that it will take notes. */
bool relay_deliveries_full(const struct rchan_buf *buf);

/* Add a note about a committed record, unless the queue is full. Only one process, the file server, calls it. */
void relay_deliveries_add(struct rchan_buf *buf, uint64_t pos, uint64_t length);

/* Take the oldest note; for the maker's thread. Returns false if there is none. *data is NULL if
 * the record is overwritten. */
bool relay_deliveries_take(struct rchan_buf *buf, char **data, uint32_t *length);

#endif
