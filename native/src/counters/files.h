/* SPDX-License-Identifier: MIT */
/* The files of a set of counters: made, checked, mapped, locked. */
#ifndef RELAYFS_COUNTERS_FILES_H
#define RELAYFS_COUNTERS_FILES_H

#include "counters/format.h"

/* Map those in a directory, writable if this process may. 0 or -errno, as relay_counters_open(); nothing is mapped then.
 * main_file: where `counters` lies in the store, if the directory is that of a mount; else NULL
 * copies: nothing is mapped, but copied at each refresh */
int relay_perf_map(struct relay_counters *counters, const char *dir, const char *main_file, bool copies);
void relay_perf_unmap(struct relay_counters *counters);

/* Map a domain, if it is not. 0 or -errno: -EACCES this process may not adjust there; -ENOENT it was freed. */
int relay_perf_map_domain(struct relay_counters *counters, uint32_t domain);

/* Make the file of a domain, which is not in the table yet; also if it is there already. Take its name away. */
int relay_perf_make_domain(struct relay_counters *counters, const struct relay_perf_domain *domain);
void relay_perf_remove_domain(struct relay_counters *counters, uint32_t domain);

/* Has the file of a domain all its bytes? */
bool relay_perf_is_whole(const struct relay_mapping *mapping);

/* Allocate memory in a file. 0 or -ENOSPC. */
int relay_perf_allocate(const struct relay_mapping *mapping, uint64_t offset, uint64_t bytes);

/* Keep others from changing anything: a descriptor, to be closed; or -EBUSY: it cannot be had within a second. */
int relay_perf_lock(int dir_fd);

#endif
