/* SPDX-License-Identifier: MIT */
/* What <relayfs/producer.h> compiles into programs. The addresses of these functions are those of the library's. */
#ifndef RELAYFS_INLINE_WRITE_H
#define RELAYFS_INLINE_WRITE_H

#include <relayfs/inline/buffer.h>
#include <relayfs/inline/counters.h>
#include <relayfs/inline/ring.h>

#ifdef __cplusplus
extern "C" {
#endif

RELAY_INLINE int relay_write(struct rchan *chan, const void *data, size_t length)
{
	return relay_inline_write(chan, data, length);
}

RELAY_INLINE int relay_perf_adjust(struct relay_counters *counters, int instance, int64_t delta)
{
	return relay_inline_adjust(counters, instance, delta);
}

RELAY_INLINE int relay_ring_output(struct relay_ring *ring, const void *data, size_t length, uint64_t flags)
{
	return relay_inline_output(ring, data, length, flags);
}

RELAY_INLINE int relay_rings_output(struct relay_rings *rings, const void *data, size_t length, uint64_t flags)
{
	return relay_inline_rings_output(rings, data, length, flags);
}

#ifdef __cplusplus
}
#endif
#endif
