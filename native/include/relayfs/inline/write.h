/* SPDX-License-Identifier: MIT */
/* What <relayfs/producer.h> compiles into programs. The addresses of these functions are those of the library's. */
#ifndef RELAYFS_INLINE_WRITE_H
#define RELAYFS_INLINE_WRITE_H

#include <relayfs/inline/counters.h>
#include <relayfs/inline/event.h>
#include <relayfs/inline/reserve.h>
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

RELAY_INLINE void *relay_reserve(struct rchan *chan, size_t length)
{
	void *to = relay_inline_reserve(chan, length);
	return __builtin_expect(to != NULL, 1) ? to : relay_reserve_anyhow(chan, length);
}

RELAY_INLINE void *relay_try_reserve(struct rchan *chan, size_t length)
{
	void *to = relay_inline_reserve(chan, length);
	return __builtin_expect(to != NULL, 1) ? to : relay_try_reserve_anyhow(chan, length);
}

RELAY_INLINE void relay_commit(struct rchan *chan, void *reserved)
{
	relay_inline_commit(chan, reserved);
}

RELAY_INLINE void *relay_ring_reserve(struct relay_ring *ring, size_t length, uint64_t flags)
{
	void *to = relay_inline_ring_reserve(ring, length, flags);
	return __builtin_expect(to != NULL, 1) ? to : relay_ring_reserve_anyhow(ring, length, flags);
}

RELAY_INLINE void *relay_rings_reserve(struct relay_rings *rings, size_t length, uint64_t flags)
{
	void *to = relay_inline_ring_reserve(relay_inline_ring_of_cpu(rings), length, flags);
	return __builtin_expect(to != NULL, 1) ? to : relay_rings_reserve_anyhow(rings, length, flags);
}

RELAY_INLINE int relay_ring_commit(void *record, uint64_t flags)
{
	return __builtin_expect(relay_inline_ring_end(record, 0, flags), 1) ? 0
	                                                                    : relay_ring_commit_anyhow(record, flags);
}

RELAY_INLINE int relay_ring_discard(void *record, uint64_t flags)
{
	return __builtin_expect(relay_inline_ring_end(record, RELAY_RING_DISCARD, flags), 1)
	           ? 0
	           : relay_ring_discard_anyhow(record, flags);
}

#ifdef __cplusplus
}
#endif
#endif
