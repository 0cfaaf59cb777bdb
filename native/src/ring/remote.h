/* SPDX-License-Identifier: MIT */
/*
 * A ring that this process cannot map, because the mount cannot map files (before Linux 6.9, or a server without
 * CAP_SYS_ADMIN) and the store belongs to another user. Its records go through its relay file: one write(2) or two read(2) each.
 *
 * The struct relay_ring of such a ring has private memory, of the smallest ring size, in which no record is ever reserved. So
 * the fast paths need no further test: no claim belongs to a thread, so they call the slow path, which returns
 * RELAY_WRONG_CPU; then its caller calls these functions.
 */
#ifndef RELAYFS_RING_REMOTE_H
#define RELAYFS_RING_REMOTE_H

#include "ring/ring.h"
#include "store/place.h"

/* Read the properties of a channel's rings from the server. 0 or -errno. */
int relay_ring_remote_geometry(const struct relay_place *place, struct relay_ring_geometry *geometry);

/* Open the ring of a CPU. NULL and errno. */
struct relay_ring_remote *relay_ring_remote_open(const struct relay_place *place,
                                                 const struct relay_ring_geometry *geometry);
void relay_ring_remote_close(struct relay_ring_remote *remote); /* NULL is ignored */

/*
 * As relay_ring_output() and so on. Further errors: -EMSGSIZE longer than write(2) can carry; -EOPNOTSUPP an empty record, which
 * write(2) cannot write; reserve: -ENOMEM, too many are open in this process; commit: those of output.
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

/* Sleep until a remote ring of these can be read; mapped rings are checked at intervals. 0 or -EINTR. */
int relay_ring_remote_wait(struct relay_ring *const *rings, size_t n, int ms);

#endif
