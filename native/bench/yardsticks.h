/* SPDX-License-Identifier: MIT */
/*
 * The yardsticks of benchmarks: what a write would cost if it were only a copy, and an adjustment if it were only an addition.
 * The benchmarks compile them into their own programs, and call them as they call the library: through a pointer.
 */
#ifndef RELAYFS_YARDSTICKS_H
#define RELAYFS_YARDSTICKS_H

#include <relayfs/counters.h>
#include <relayfs/relay.h>
#include <relayfs/ring.h>

/* Copies the record to a moving position in the memory of the channel's first buffer. One channel only, which is spoilt. */
int yardstick_copy(struct rchan *chan, const void *data, size_t length);

/* The memory that it copies to, and its bytes. */
unsigned char *yardstick_memory(const struct rchan *chan, size_t *bytes);

/* The same to the memory of a ring, which is spoilt. */
int yardstick_ring_copy(struct relay_ring *ring, const void *data, size_t length, uint64_t flags);

/* What a record in a ring for all CPUs cannot do without: one locked exchange of the tail's 16 bytes, a header, the producer position
 * and the copy. The ring is spoilt. */
int yardstick_ring_exchange(struct relay_ring *ring, const void *data, size_t length, uint64_t flags);

/* What relay_perf_adjust() would cost if it were a plain addition, or a locked one. The counters are not changed. */
int yardstick_add(struct relay_counters *counters, int instance, int64_t delta);
int yardstick_locked_add(struct relay_counters *counters, int instance, int64_t delta);

#endif
