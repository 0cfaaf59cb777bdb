/* SPDX-License-Identifier: MIT */
/* Pages of counts, mapped: for each slot of the control file, the events that programs have lost because they got no
 * buffers in the slot's trace. Functions ignore a page that is NULL. */
#ifndef RELAYFS_TRACE_LOST_H
#define RELAYFS_TRACE_LOST_H

#include <relayfs/trace_store.h>
#include <stdbool.h>

struct relay_lost_page;

/* Map the page beside a control file: STORE/.traces-lost for STORE/.traces, MNT/.traces/lost for MNT/.traces/control.
 * makes: make STORE/.traces-lost if it does not exist. NULL: there is no page, or this process may not write to it. */
struct relay_lost_page *relay_lost_map(const char *control, bool makes);
void relay_lost_unmap(struct relay_lost_page *page);

/* Add `records` to the count of the trace with this id in this slot. false: the page counts for another trace there. */
bool relay_lost_add(struct relay_lost_page *page, unsigned slot, uint64_t id, uint64_t records);

/* Return the count of the trace with this id in this slot. 0 also if the page counts for another trace there. */
uint64_t relay_lost_get(const struct relay_lost_page *page, unsigned slot, uint64_t id);

/* Begin to count, from 0, for a new trace with this id; nothing changes if the id is 0 or not new. For the server. */
void relay_lost_begin(struct relay_lost_page *page, unsigned slot, uint64_t id);

/* The pages of users other than the server's, STORE/.traces-lost-UID, to each of which only programs of that user can
 * write. For the server. */
struct relay_lost_users;

/* Map the pages that exist in a store. NULL: no memory. */
struct relay_lost_users *relay_lost_users_open(const char *store);
void relay_lost_users_close(struct relay_lost_users *users);

/* relay_lost_begin() for each page. users may be NULL. */
void relay_lost_users_begin(struct relay_lost_users *users, unsigned slot, uint64_t id);

/* Return the descriptor of a user's page, which is made if it does not exist; the descriptor stays owned by `users`.
 * ids: of the
 * traces in all slots. -ENOSPC: there are 1024 pages, or no memory on the file system; or another -errno. */
int relay_lost_users_get(struct relay_lost_users *users, const char *store, uint32_t uid,
                         const uint64_t ids[RELAY_N_TRACES]);

#endif
