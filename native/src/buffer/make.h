/* SPDX-License-Identifier: MIT */
/* Making relay buffers whose data get memory later; relay_store_create() is in <relayfs/store.h>. */
#ifndef RELAYFS_BUFFER_MAKE_H
#define RELAYFS_BUFFER_MAKE_H

struct relay_spec; /* store.h */

/* As relay_store_create(), for buffers that one process writes, spec->pid. The data get memory when that process
 * first writes (RELAY_UNALLOCATED). Returns -EINVAL also if spec->pid is 0. */
int relay_store_create_sparse(const char *dir, const struct relay_spec *spec);

#endif
