/* SPDX-License-Identifier: MIT */
/*
 * Notes of records that write(2) brought, for a maker that deliver() tells of each record (classic.h).
 *
 *     file server                                      the maker's thread
 *     write(2): reserve, copy, commit
 *     note {position, length}, noted++, wake      ->   deliver(), told++
 */
#ifndef RELAYFS_BUFFER_DELIVERIES_H
#define RELAYFS_BUFFER_DELIVERIES_H

#include "buffer/buffer.h"

/* Does a maker want notes of this buffer's records? */
bool relay_deliveries_wanted(const struct rchan_buf *buf);

/* Is there no room for a note, while the maker lives, which will make room? */
bool relay_deliveries_full(const struct rchan_buf *buf);

/* Note a record that is committed. One process at a time notes: the file server. */
void relay_deliveries_add(struct rchan_buf *buf, uint64_t pos, uint64_t length);

/* For the maker's thread: take the oldest note. false: there is none. Its record is still there if *data is not NULL. */
bool relay_deliveries_take(struct rchan_buf *buf, char **data, uint32_t *length);

#endif
