/* SPDX-License-Identifier: MIT */
/* Events of traces that programs have lost because they could get no buffers to write them to: a page of counts, mapped. */
#ifndef RELAYFS_TRACE_LOST_H
#define RELAYFS_TRACE_LOST_H

#include <relayfs/trace_store.h>
#include <stdbool.h>

struct relay_lost_page;

/* Map the counts beside a control file: STORE/.traces-lost of STORE/.traces, or .traces/lost of a mount's .traces/control.
 * `makes`: make the first where it is missing. NULL: this process cannot write them. */
struct relay_lost_page *relay_lost_map(const char *control, bool makes);
void relay_lost_unmap(struct relay_lost_page *page);

/* Count for the trace of this id in this slot. false: the page has another trace there. */
bool relay_lost_add(struct relay_lost_page *page, unsigned slot, uint64_t id, uint64_t records);
uint64_t relay_lost_get(const struct relay_lost_page *page, unsigned slot, uint64_t id);

/* For the server: a new trace has lost none. */
void relay_lost_begin(struct relay_lost_page *page, unsigned slot, uint64_t id);

/* For the server: the pages of other users than its own, each of which only programs of that user write. */
struct relay_lost_users;

/* Map those that an earlier server has made in a store. NULL: no memory. */
struct relay_lost_users *relay_lost_users_open(const char *store);
void relay_lost_users_close(struct relay_lost_users *users);
void relay_lost_users_begin(struct relay_lost_users *users, unsigned slot, uint64_t id);

/* The page of a user, made if there is none; `ids` are the traces of all slots. Its descriptor, or -errno. */
int relay_lost_users_get(struct relay_lost_users *users, const char *store, uint32_t uid,
                         const uint64_t ids[RELAY_N_TRACES]);

#endif
