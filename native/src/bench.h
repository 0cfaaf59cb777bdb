/* SPDX-License-Identifier: MIT */
/* The yardstick of benchmarks: what a write would cost if it were only a copy. Not installed. */
#ifndef RELAYFS_BENCH_H
#define RELAYFS_BENCH_H

#include <relayfs/counters.h>
#include <relayfs/relay.h>
#include <relayfs/ring.h>

/* Copies the record to a moving position in the memory of the channel's first buffer. The channel is spoilt. */
int relay_bench_copy(struct rchan *chan, const void *data, size_t length);

/* The same to the memory of a ring, which is spoilt. */
int relay_bench_ring_copy(struct relay_ring *ring, const void *data, size_t length, uint64_t flags);

/* What relay_perf_adjust() would cost if it were a plain addition, or a locked one. */
int relay_bench_add(struct relay_counters *counters, int instance, int64_t delta);
int relay_bench_locked_add(struct relay_counters *counters, int instance, int64_t delta);

#endif
