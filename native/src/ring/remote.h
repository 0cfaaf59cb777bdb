/* SPDX-License-Identifier: MIT */
/*
 * A ring that this process cannot map: the mount maps no files (before Linux 6.9, or a server without CAP_SYS_ADMIN), and
 * the store is another user's. Its records go through its relay file: one write(2) or two read(2) each.
 *
 * The struct relay_ring of such a ring has private memory, the smallest that a ring can have, where nothing is ever
 * reserved. So the fast paths need not ask: no claim there is any thread's, and they come to the slow one, which says
 * RELAY_WRONG_CPU, and whoever called it then comes here.
 */
#ifndef RELAYFS_RING_REMOTE_H
#define RELAYFS_RING_REMOTE_H

#include "ring/ring.h"
#include "store/place.h"

/* What the server says of all rings of a channel. 0 or -errno. */
int relay_ring_remote_geometry(const struct relay_place *place, struct relay_ring_geometry *geometry);

/* The ring of this CPU. NULL and errno. */
struct relay_ring_remote *relay_ring_remote_open(const struct relay_place *place,
                                                 const struct relay_ring_geometry *geometry);
void relay_ring_remote_close(struct relay_ring_remote *remote); /* NULL is ignored */

/*
 * As relay_ring_output() and so on. Beyond their errors: -EMSGSIZE longer than write(2) carries; -EOPNOTSUPP no bytes, which
 * write(2) cannot say; reserve: -ENOMEM, too many are open in this process; commit: those of output.
 */
int relay_ring_remote_output(const struct relay_ring_remote *remote, const void *data, size_t length);
int relay_ring_remote_reserve(const struct relay_ring_remote *remote, size_t length, void **record);
int relay_ring_remote_commit(const void *record); /* of any ring */
int relay_ring_remote_discard(const void *record);

uint64_t relay_ring_remote_query(const struct relay_ring_remote *remote, uint64_t what);

/* As relay_ring_next() and so on; -EOPNOTSUPP: reads do not tell where records end, or how many were overwritten. */
int relay_ring_remote_next(struct relay_ring_remote *remote, const void **data, size_t *length);
void relay_ring_remote_release(struct relay_ring_remote *remote);
void relay_ring_remote_abort(struct relay_ring_remote *remote);
int relay_ring_remote_state(struct relay_ring_remote *remote);

/* Sleep until one of the rings that are remote has news; others are looked at every now and then. 0 or -EINTR. */
int relay_ring_remote_wait(struct relay_ring *const *rings, size_t n, int ms);

#endif
