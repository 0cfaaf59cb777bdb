/* SPDX-License-Identifier: MIT */
/*
 * A ring that this process cannot map, because the mount cannot map files (before Linux 6.9, or a server
 * without CAP_SYS_ADMIN) and the store belongs to another user. Its records go through its relay file: one
 * write(2) or two read(2) each.
 *
 * The struct relay_ring of such a ring has private memory, of the smallest ring size, in which no record is ever
 * reserved. So the fast paths do not test whether a ring is remote: no claim belongs to a thread, so they call the slow
 * path, which returns RELAY_WRONG_CPU; then its caller calls these functions.
 */
#ifndef RELAYFS_RING_REMOTE_H
#define RELAYFS_RING_REMOTE_H

#include "ring/ring.h"
#include "store/place.h"

/* Read the parameters of a channel's rings from the server. Returns 0 or -errno. */
int relay_ring_remote_geometry(const struct relay_place *place, struct relay_ring_geometry *geometry);

/* Open the ring of geometry->cpu. Returns NULL and sets errno on failure. */
struct relay_ring_remote *relay_ring_remote_open(const struct relay_place *place,
                                                 const struct relay_ring_geometry *geometry);
void relay_ring_remote_close(struct relay_ring_remote *remote); /* NULL is ignored */

/*
 * As relay_ring_output(), relay_ring_reserve() and so on, but with errors as -errno, and further ones: -EMSGSIZE:
 * longer than write(2) can carry; -EOPNOTSUPP: an empty record, which write(2) cannot write; for a reservation,
 * -ENOMEM: too many are open in this process; for a commit, the errors of output.
 */
int relay_ring_remote_output(const struct relay_ring_remote *remote, const void *data, size_t length);
int relay_ring_remote_reserve(const struct relay_ring_remote *remote, size_t length, void **record);
int relay_ring_remote_commit(const void *record); /* a record of any remote ring */
int relay_ring_remote_discard(const void *record);

uint64_t relay_ring_remote_query(const struct relay_ring_remote *remote, uint64_t what);

/* As relay_ring_next() and so on; -EOPNOTSUPP: the framing does not show where records end, or the ring is in overwrite
 * mode, because read(2) does not return the number of overwritten records. */
int relay_ring_remote_next(struct relay_ring_remote *remote, const void **data, size_t *length);
void relay_ring_remote_release(struct relay_ring_remote *remote);
void relay_ring_remote_abort(struct relay_ring_remote *remote);
int relay_ring_remote_state(struct relay_ring_remote *remote);

/* Sleep until one of the remote rings can be read, for `ms` at most; if others are mapped, for LOOK_AGAIN_MS
 * (ring/remote.c) at most, so that the caller checks them. Returns 0 or -errno. */
int relay_ring_remote_wait(struct relay_ring *const *rings, size_t n, int ms);

#endif
