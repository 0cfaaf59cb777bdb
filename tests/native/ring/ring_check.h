/* SPDX-License-Identifier: MIT */
/*
 * What the C tests of record rings share: check.h's frame, rings, and a consumer written from the kernel's layout alone.
 *
 * Scheme rseq tests the ring of the home CPU, lockless one ring for all.
 */
#ifndef RING_CHECK_H
#define RING_CHECK_H

#include "check.h"

#include <relayfs/ring_layout.h>
#include <relayfs/ring_store.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096 };

DEFINE_AUTOPTR(relay_ring, relay_ring_close)

static inline struct relay_ring_spec a_ring_spec(uint64_t ring_size, uint32_t mode)
{
	return (struct relay_ring_spec){.size = sizeof(struct relay_ring_spec),
	                                .ring_size = ring_size,
	                                .n_rings = scheme == RELAY_RSEQ ? relay_n_possible_cpus() : 1,
	                                .mode = mode,
	                                .scheme = scheme,
	                                .buffers = scheme == RELAY_RSEQ ? RELAY_PERCPU : RELAY_GLOBAL,
	                                .file_mode = 0600,
	                                .uid = (uint32_t)-1,
	                                .gid = (uint32_t)-1};
}

/* The path of the home CPU's ring of new ones; valid until the next call. */
static inline const char *make_ring_file_as(const struct relay_ring_spec *spec)
{
	static unsigned n;
	static char path[4096];

	snprintf(path, sizeof(path), "%s/rings%u", scratch, n++);
	CHECK_EQ(relay_ring_create(path, spec), 0);
	snprintf(path + strlen(path), 32, "/mem%u", spec->n_rings == 1 ? 0 : home_cpu);
	return path;
}

static inline const char *make_ring_file(uint64_t ring_size, uint32_t mode)
{
	struct relay_ring_spec spec = a_ring_spec(ring_size, mode);

	return make_ring_file_as(&spec);
}

static inline struct relay_ring *open_ring(const char *path)
{
	struct relay_ring *ring = relay_ring_open(path);

	CHECK(ring != NULL);
	return ring;
}

static inline struct relay_ring *make_ring(uint64_t ring_size, uint32_t mode)
{
	return open_ring(make_ring_file(ring_size, mode));
}

static inline struct relay_ring *make_framed_ring(uint64_t ring_size, uint32_t mode, uint32_t times, uint32_t framing)
{
	struct relay_ring_spec spec = a_ring_spec(ring_size, mode);

	spec.times = times;
	spec.framing = framing;
	return open_ring(make_ring_file_as(&spec));
}

static inline struct relay_ring_stats ring_stats(struct relay_ring *ring)
{
	struct relay_ring_stats stats;

	CHECK_EQ(relay_ring_stats(ring, &stats), 0);
	return stats;
}

/* A record of n times `letter`. */
static inline int output_letters(struct relay_ring *ring, char letter, size_t n, uint64_t flags)
{
	char *data = malloc(n + 1);
	int err;

	CHECK(data != NULL);
	memset(data, letter, n);
	err = relay_ring_output(ring, data, n, flags);
	free(data);
	return err;
}

static inline char *reserve_letters(struct relay_ring *ring, char letter, size_t n)
{
	char *record = relay_ring_reserve(ring, n, 0);

	CHECK(record != NULL);
	memset(record, letter, n);
	return record;
}

/* The first letters of all records there are, consumed. Valid until the next call. */
static inline const char *drain_letters(struct relay_ring *ring)
{
	static char letters[1 << 16];
	size_t n = 0, length, i;
	const void *data;
	int result;

	while ((result = relay_ring_next(ring, &data, &length)) == 1) {
		const char *text = data;

		for (i = 1; i < length; i++)
			CHECK_EQ(text[i], text[0]);
		CHECK(n < sizeof(letters) - 1);
		letters[n++] = length ? text[0] : '.';
		relay_ring_release(ring);
	}
	CHECK(result == 0 || result == -EPIPE);
	letters[n] = 0;
	return letters;
}

#define CHECK_LETTERS(ring, expected) CHECK_TEXT(drain_letters(ring), expected)

/* --- the kernel's layout, as a program that maps a BPF ring buffer knows it --- */

struct kernel_ring {
	uint64_t *consumer;
	const uint64_t *producer;
	const unsigned char *data; /* 2 * size bytes */
	uint64_t size;
};

static inline struct kernel_ring kernel_map(int fd, uint64_t size)
{
	struct kernel_ring k = {.size = size};
	const unsigned char *rest;

	k.consumer = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	rest = mmap(NULL, PAGE + 2 * size, PROT_READ, MAP_SHARED, fd, PAGE);
	CHECK(k.consumer != MAP_FAILED && rest != MAP_FAILED);
	k.producer = (const uint64_t *)rest;
	k.data = rest + PAGE;
	return k;
}

static inline const uint32_t *kernel_header(const struct kernel_ring *k, uint64_t pos)
{
	return (const uint32_t *)(k->data + (pos & (k->size - 1)));
}

/* The next committed record that is not discarded: 1; 0: none. Consumed up to it. */
static inline int kernel_next(const struct kernel_ring *k, const unsigned char **data, uint32_t *length)
{
	for (;;) {
		uint64_t pos = *k->consumer;
		uint32_t header;

		if (pos == __atomic_load_n(k->producer, __ATOMIC_ACQUIRE))
			return 0;
		header = __atomic_load_n(kernel_header(k, pos), __ATOMIC_ACQUIRE);
		if (header & 1u << 31)
			return 0;
		*length = header << 2 >> 2;
		*data = k->data + (pos & (k->size - 1)) + 8;
		if (!(header & 1u << 30))
			return 1;
		__atomic_store_n(k->consumer, pos + ((uint64_t)*length + 15) / 8 * 8, __ATOMIC_RELEASE);
	}
}

/*
 * Mode overwrite, as the kernel has it since 6.19 (BPF_F_RB_OVERWRITE): behind the producer position and a word of the
 * kernel's own lies the overwrite position. The next record from *pos on that stands is copied to `to`, which has the ring's
 * size; it is whole if the overwrite position has not passed it afterwards. 1; 0: there is none.
 */
static inline int kernel_copy_next(const struct kernel_ring *k, uint64_t *pos, unsigned char *to, uint32_t *length)
{
	const uint64_t *overwritten = k->producer + 2;

	for (;;) {
		uint64_t produced = __atomic_load_n(k->producer, __ATOMIC_ACQUIRE);
		uint64_t from = __atomic_load_n(overwritten, __ATOMIC_ACQUIRE);
		uint32_t header;

		*pos = from > *pos ? from : *pos;
		if (*pos >= produced)
			return 0;
		header = __atomic_load_n(kernel_header(k, *pos), __ATOMIC_ACQUIRE);
		*length = header << 2 >> 2;
		memcpy(to, k->data + (*pos & (k->size - 1)) + 8, *length < k->size ? *length : 0);
		/* Pairs with the store of the position before anything is stored over what it has passed. */
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		if (__atomic_load_n(overwritten, __ATOMIC_RELAXED) > *pos)
			continue;
		CHECK(*length <= k->size - 16);
		if (header & 1u << 31)
			return 0;
		*pos += ((uint64_t)*length + 15) / 8 * 8;
		if (!(header & 1u << 30))
			return 1;
	}
}

static inline void kernel_done(const struct kernel_ring *k, uint32_t length)
{
	__atomic_store_n(k->consumer, *k->consumer + ((uint64_t)length + 15) / 8 * 8, __ATOMIC_RELEASE);
}

#endif
