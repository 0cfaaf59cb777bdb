/* SPDX-License-Identifier: MIT */
#include "yardsticks.h"

#include "channel/channel.h"
#include "ring/ring.h"

#include <errno.h>
#include <string.h>

int yardstick_copy(struct rchan *chan, const void *data, size_t length)
{
	static uint64_t next;
	struct rchan_buf *buf = &chan->bufs[0];
	uint64_t at = next;
	if (__builtin_expect(length > buf->subbuf_size * buf->n_subbufs - at, 0))
		at = 0;
	memcpy(buf->data + at, data, length);
	next = at + length;
	return 0;
}

unsigned char *yardstick_memory(const struct rchan *chan, size_t *bytes)
{
	*bytes = chan->bufs->subbuf_size * chan->bufs->n_subbufs;
	return chan->bufs->data;
}

int yardstick_ring_copy(struct relay_ring *ring, const void *data, size_t length, uint64_t flags)
{
	(void)flags;
	memcpy(relay_ring_at(ring, ring->seen.position), data, length);
	ring->seen.position += relay_ring_total(length);
	return 0;
}

int yardstick_ring_exchange(struct relay_ring *ring, const void *data, size_t length, uint64_t flags)
{
	struct relay_ring_producer *producer = ring->producer;
	/* Relaxed, all: the exchange is a full barrier, and nobody reads. */
	uint64_t pos = __atomic_load_n(&producer->tail[0].first, __ATOMIC_RELAXED);
	uint64_t number = __atomic_load_n(&producer->tail[0].second, __ATOMIC_RELAXED);
	uint64_t end = pos + relay_ring_total(length);
	(void)flags;
	if (!relay_u128_cmpxchg(&producer->tail[0], pos, number, end, number + 1))
		return -EAGAIN;
	__atomic_store_n((uint64_t *)relay_ring_at(ring, pos), relay_ring_header(ring, pos, (uint32_t)length),
	                 __ATOMIC_RELAXED);
	__atomic_store_n(&producer->position.first, end, __ATOMIC_RELAXED);
	memcpy(relay_ring_at(ring, pos) + RELAY_RING_HEADER_BYTES, data, length);
	return 0;
}

/* An instance's word is found as relay_perf_adjust() finds it. */
static int64_t words[4][RELAY_PERF_SLOTS];
static int64_t *volatile chunks[] = {words[0], words[1], words[2], words[3]};
static volatile uint32_t chunks_max = 4;

static inline int64_t *word_of(int instance)
{
	uint32_t chunk = (uint32_t)instance / RELAY_PERF_SLOTS, slot = (uint32_t)instance % RELAY_PERF_SLOTS;
	if (__builtin_expect(chunk >= chunks_max || slot == 0, 0))
		return NULL;
	int64_t *block = chunks[chunk];
	return __builtin_expect(block != NULL, 1) ? block + slot : NULL;
}

int yardstick_add(struct relay_counters *counters, int instance, int64_t delta)
{
	int64_t *word = word_of(instance);
	(void)counters;
	if (!word)
		return -ENOENT;
	*(volatile int64_t *)word += delta;
	return 0;
}

int yardstick_locked_add(struct relay_counters *counters, int instance, int64_t delta)
{
	int64_t *word = word_of(instance);
	(void)counters;
	if (!word)
		return -ENOENT;
	__atomic_fetch_add(word, delta, __ATOMIC_RELAXED);
	return 0;
}
