/* SPDX-License-Identifier: MIT */
/* Counters of a mount that cannot map files (before Linux 6.9, or a server without CAP_SYS_ADMIN), for users other than
 * its store's owner: this process has copies, which a refresh updates, and asks the server to adjust. */
#ifndef RELAYFS_COUNTERS_COPY_H
#define RELAYFS_COUNTERS_COPY_H

#include "counters/format.h"

/* Allocate memory for a copy of fd, which then belongs to mapping. 0 or -ENOMEM. */
int relay_perf_copy_new(struct relay_mapping *mapping, int fd, uint64_t bytes);

/* Copy the first page of both files, which is checked before the rest is copied. 0 or -errno. */
int relay_perf_copy_heads(struct relay_counters *counters);

/* Copy a part of a file. 0; -EBADMSG: it is shorter; or as pread(2). */
int relay_perf_copy_part(const struct relay_mapping *mapping, uint64_t at, uint64_t bytes);

/* Copy both files, in one generation. 0; -EAGAIN: a change is under way; or -errno. */
int relay_perf_copy_refresh(struct relay_counters *counters);

/* Ask the server to adjust a counter. 0 or -errno, as open(2) and write(2). Async-signal-safe. */
int relay_perf_copy_adjust(const struct relay_counters *counters, int instance, int64_t delta);

#endif
