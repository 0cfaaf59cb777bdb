/* SPDX-License-Identifier: MIT */
/* Adding and deleting instances, in processes that may write to all files (`direct`). */
#ifndef RELAYFS_COUNTERS_ADD_DELETE_H
#define RELAYFS_COUNTERS_ADD_DELETE_H

#include "counters/format.h"

/* Add an instance. The spec is complete and checked, with the final mode, uid and gid. Returns its number, or -errno as
 * relay_perf_add(). The caller of both functions has the mutex. */
int relay_perf_change_add(struct relay_counters *counters, const char *name, const struct relay_perf_spec *spec);

/* Delete an instance. free_it: free its number, too, if it is of domain 0. Returns 0 or -errno: -ENOENT it is not
 * listed. */
int relay_perf_change_del(struct relay_counters *counters, uint32_t n, bool free_it);

#endif
