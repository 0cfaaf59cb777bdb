/* SPDX-License-Identifier: MIT */
/* Making, checking, mapping and locking the files of a set of counters. */
#ifndef RELAYFS_COUNTERS_FILES_H
#define RELAYFS_COUNTERS_FILES_H

#include "counters/format.h"

/* Map the files in a directory, writable if this process may write to them. 0 or -errno, as relay_counters_open(); on
 * failure nothing is mapped.
 * main_file: the path of `counters` in the store, if the directory is in a mount; else NULL
 * copies: map nothing, but copy the files at each refresh */
int relay_perf_map(struct relay_counters *counters, const char *dir, const char *main_file, bool copies);
void relay_perf_unmap(struct relay_counters *counters);

/* Map a domain, unless it is mapped. 0 or -errno: -EACCES this process may not adjust there; -ENOENT it was freed. */
int relay_perf_map_domain(struct relay_counters *counters, uint32_t domain);

/* relay_perf_make_domain() makes the file of a domain that is not in the table yet, and replaces a file that is left
 * from a process that died; 0 or -errno. relay_perf_remove_domain() removes the file's name. */
int relay_perf_make_domain(struct relay_counters *counters, const struct relay_perf_domain *domain);
void relay_perf_remove_domain(struct relay_counters *counters, uint32_t domain);

/* True if the file of a mapping has not been truncated, or its size is unknown. */
bool relay_perf_is_whole(const struct relay_mapping *mapping);

/* Allocate memory in a file. 0 or -errno: -ENOSPC; -EBADF the program has closed the descriptor. */
int relay_perf_allocate(const struct relay_mapping *mapping, uint64_t offset, uint64_t bytes);

/* Take the lock. Returns a descriptor, whose close(2) releases the lock; or -errno: -EBUSY another process has had it
 * for a second. */
int relay_perf_lock(int dir_fd);

#endif
