/* SPDX-License-Identifier: MIT */
/* What make.c has for the library besides its API. */
#ifndef RELAYFS_BUFFER_MAKE_H
#define RELAYFS_BUFFER_MAKE_H

struct relay_spec; /* store.h */

/* relay_store_create() of buffers that one process writes, spec->pid; their data get their memory when they are first written.
 * -EINVAL also if there is no such process. */
int relay_store_create_sparse(const char *dir, const struct relay_spec *spec);

#endif
