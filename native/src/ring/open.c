/* SPDX-License-Identifier: MIT */
/*
 * Mapping a ring into this process, and finding the ring of a record by its address.
 *
 * The kernel finds a record's ring by the page number in its header. Here the header is in shared memory and not
 * trusted, so a table in private memory has the address ranges of open rings. The table never moves, because signal
 * handlers search it while other threads change it: an entry is valid while its `base` is not 0.
 */
#define _GNU_SOURCE
#include "ring/ring.h"

#include "base/futex.h"
#include "base/libc.h"
#include "base/rseq.h"
#include "ring/claims.h"
#include "ring/geometry.h"
#include "ring/remote.h"

#include <errno.h>
#include <pthread.h>
#include <relayfs/check_store.h>
#include <stdlib.h>
#include <unistd.h>

enum { MAX_OPEN = 4096 };

static struct {
	uintptr_t base;
	uint64_t bytes;
	struct relay_ring *ring;
} open_rings[MAX_OPEN];

static uint32_t n_slots; /* slots that were ever used have smaller numbers */
static pthread_mutex_t open_mutex = PTHREAD_MUTEX_INITIALIZER;
static __thread uint32_t last_slot RELAY_TLS;

/* --- the table --- */

static int add_to_table(struct relay_ring *ring)
{
	int err = -EMFILE;
	pthread_mutex_lock(&open_mutex);
	for (uint32_t i = 0; i < MAX_OPEN; i++) {
		if (open_rings[i].base)
			continue;
		open_rings[i].ring = ring;
		open_rings[i].bytes = RELAY_RING_DATA_AT + 2 * ring->size;
		/* Pairs with the acquire in is_in(): the other fields before `base`. */
		__atomic_store_n(&open_rings[i].base, (uintptr_t)ring->mapping.base, __ATOMIC_RELEASE);
		if (i >= n_slots)
			__atomic_store_n(&n_slots, i + 1, __ATOMIC_RELEASE);
		ring->slot = i;
		ring->entry = &open_rings[i].ring;
		err = 0;
		break;
	}
	pthread_mutex_unlock(&open_mutex);
	return err;
}

static void remove_from_table(struct relay_ring *ring)
{
	pthread_mutex_lock(&open_mutex);
	/* Pairs with the acquire in is_in(), which then ignores the entry. */
	__atomic_store_n(&open_rings[ring->slot].base, 0, __ATOMIC_RELEASE);
	/* Relaxed: relay_inline_ring_end() of any thread whose latest reservation was in this ring sees the store, because no thread
	 * may use the ring any more. */
	__atomic_store_n(&open_rings[ring->slot].ring, NULL, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&open_mutex);
}

static bool is_in(uint32_t slot, const void *record)
{
	/* Pairs with the release in add_to_table(): the other fields before `base`. */
	uintptr_t base = __atomic_load_n(&open_rings[slot].base, __ATOMIC_ACQUIRE);
	/* Other entries may change meanwhile, but not the entry of a ring in which the caller has a record. */
	return base && (uintptr_t)record - base < open_rings[slot].bytes;
}

struct relay_ring *relay_ring_of(const void *record)
{
	if (__builtin_expect(is_in(last_slot, record), 1))
		return open_rings[last_slot].ring;
	/* Pairs with the release in add_to_table(): the entry before the count. */
	for (uint32_t i = 0; i < __atomic_load_n(&n_slots, __ATOMIC_ACQUIRE); i++) {
		if (!is_in(i, record))
			continue;
		last_slot = i;
		return open_rings[i].ring;
	}
	return NULL;
}

/* --- opening --- */

static void set_addresses(struct relay_ring *ring, const struct relay_ring_geometry *geometry,
                          const struct relay_ring_layout *layout)
{
	unsigned char *base = ring->mapping.base;
	ring->consumer = (struct relay_ring_consumer *)base;
	ring->producer = (struct relay_ring_producer *)(base + RELAY_PAGE_BYTES);
	ring->data = base + RELAY_RING_DATA_AT;
	ring->ready = (uint64_t *)(base + layout->ready_at);
	ring->claims = (struct relay_ring_claim *)(base + layout->claims_at);
	ring->state = (struct relay_ring_state *)(base + layout->state_at);
	ring->size = geometry->size;
	ring->mask = geometry->size - 1;
	ring->time_bytes = geometry->times ? RELAY_RING_TIME_BYTES : 0;
	ring->largest = geometry->size - 2 * RELAY_RING_HEADER_BYTES;
	if (ring->largest > RELAY_RING_RECORD_MAX)
		ring->largest = RELAY_RING_RECORD_MAX;
	ring->largest -= ring->time_bytes;
	ring->quick = ring->time_bytes ? 0 : ring->largest + 1;
	ring->cpu = geometry->cpu;
	ring->mode = geometry->mode;
	ring->scheme = geometry->scheme;
	if (ring->scheme == RELAY_RSEQ && ring->mode == RELAY_NO_OVERWRITE)
		ring->n_quick[RELAY_INLINE_VERSION] = (uint32_t)ring->quick;
	ring->geometry = *geometry;
}

/* Set up a ring whose memory is mapped, and enter it into the table. On failure the memory is unmapped. */
static int set_up(struct relay_ring *ring, const struct relay_ring_geometry *geometry)
{
	struct relay_ring_layout layout;
	int err = relay_ring_check_geometry(geometry, ring->mapping.bytes, &layout, NULL);
	if (!err) {
		set_addresses(ring, geometry, &layout);
		err = add_to_table(ring);
	}
	if (err) {
		relay_mapping_unmap(&ring->mapping);
		return err;
	}
	relay_ring_claims_init(ring);
	return 0;
}

typedef int map_function(struct relay_mapping *mapping, int fd);

/* Map and set up a ring. fd belongs to the ring, and is closed on failure. */
static int map_ring(struct relay_ring *ring, int fd, map_function *map)
{
	*ring = (struct relay_ring){0};
	int err = map(&ring->mapping, fd);
	if (err) {
		close(fd);
		return err;
	}
	/* Copied once, because other processes may change it after the check. */
	struct relay_ring_geometry geometry =
	    ((struct relay_ring_state *)(ring->mapping.base + ring->mapping.bytes - RELAY_PAGE_BYTES))->geometry;
	/* In a view nothing is written that a reader waits for. */
	if (map == relay_mapping_map)
		relay_fence_register();
	return set_up(ring, &geometry);
}

/* Set up a ring in private memory, of the smallest size. fd belongs to the ring, and is closed on failure. */
static int map_private(struct relay_ring *ring, int fd, const struct relay_ring_geometry *geometry)
{
	struct relay_ring_geometry private = *geometry;
	private.size = RELAY_PAGE_BYTES;
	private.file_bytes = relay_ring_file_bytes(private.size);
	*ring = (struct relay_ring){0};
	int err = relay_mapping_map_private(&ring->mapping, fd, private.file_bytes);
	if (err) {
		close(fd);
		return err;
	}
	((struct relay_ring_state *)(ring->mapping.base + ring->mapping.bytes - RELAY_PAGE_BYTES))->geometry = private;
	return set_up(ring, &private);
}

struct relay_ring *relay_ring_new_remote(struct relay_ring_remote *remote, const struct relay_ring_geometry *geometry,
                                         int fd)
{
	struct relay_ring *ring = malloc(sizeof(*ring));
	int copy = ring ? relay_descriptor_copy(fd) : -ENOMEM;
	int err = copy < 0 ? copy : map_private(ring, copy, geometry);
	if (!err) {
		ring->remote = remote;
		return ring;
	}
	free(ring);
	relay_ring_remote_close(remote);
	errno = -err;
	return NULL;
}

static struct relay_ring *open_ring_fd(int fd, map_function *map)
{
	if (fd < 0) {
		errno = -fd;
		return NULL;
	}
	struct relay_ring *ring = malloc(sizeof(*ring));
	int err = ring ? map_ring(ring, fd, map) : -ENOMEM;
	if (!err)
		return ring;
	if (!ring)
		close(fd);
	free(ring);
	errno = -err;
	return NULL;
}

struct relay_ring *relay_ring_open(const char *mem_file)
{
	return open_ring_fd(relay_file_open(mem_file), relay_mapping_map);
}

struct relay_ring *relay_ring_fdopen(int fd)
{
	return open_ring_fd(relay_descriptor_copy(fd), relay_mapping_map);
}

struct relay_ring *relay_ring_view(int fd)
{
	return open_ring_fd(relay_descriptor_copy(fd), relay_mapping_map_view);
}

struct relay_ring *relay_ring_glance(int fd)
{
	return open_ring_fd(fd, relay_mapping_map_glance);
}

void relay_ring_close(struct relay_ring *ring)
{
	if (!ring)
		return;
	relay_ring_abort(ring);
	remove_from_table(ring);
	relay_ring_remote_close(ring->remote);
	relay_mapping_unmap(&ring->mapping);
	free(ring);
}

void relay_ring_close_fd(struct relay_ring *ring)
{
	relay_descriptor_close(&ring->mapping.file);
}

int relay_ring_fd(const struct relay_ring *ring)
{
	return ring ? ring->mapping.file.fd : -EBADF;
}
