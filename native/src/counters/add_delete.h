/* SPDX-License-Identifier: MIT */
/* Adding and deleting, by who may write to all files (`direct`). */
#ifndef RELAYFS_COUNTERS_ADD_DELETE_H
#define RELAYFS_COUNTERS_ADD_DELETE_H

#include "counters/format.h"

/* The spec is complete and checked: mode, uid and gid are what is meant. The mutex is held. */
int relay_perf_change_add(struct relay_counters *counters, const char *name, const struct relay_perf_spec *spec);

/* free_it: the number can be taken again if it is of domain 0. */
int relay_perf_change_del(struct relay_counters *counters, uint32_t n, bool free_it);

#endif
