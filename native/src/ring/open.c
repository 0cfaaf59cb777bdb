/* SPDX-License-Identifier: MIT */
/*
 * Mapping a ring into this process, and finding the ring of a record by its address.
 *
 * The kernel finds a record's ring by the page number in its header. Here the header is in shared memory and not trusted, so
 * a table in private memory has the address ranges of open rings. The table never moves, because signal handlers search it
 * while other threads change it: an entry is valid while its `base` is not 0.
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
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

enum { MAX_OPEN = 4096 };

static struct {
	uintptr_t base;
	uint64_t bytes;
	struct relay_ring *ring;
} open_rings[MAX_OPEN];

static uint32_t n_slots; /* used ones are below this */
static pthread_mutex_t open_mutex = PTHREAD_MUTEX_INITIALIZER;
static __thread uint32_t last_slot RELAY_TLS;

/* --- the table --- */

static int enter(struct relay_ring *ring)
{
	int err = -EMFILE;
	pthread_mutex_lock(&open_mutex);
	for (uint32_t i = 0; i < MAX_OPEN; i++) {
		if (open_rings[i].base)
			continue;
		open_rings[i].ring = ring;
		open_rings[i].bytes = RELAY_RING_DATA_AT + 2 * ring->size;
		/* Pairs with the acquire in is_in(): all of the entry before its address. */
		__atomic_store_n(&open_rings[i].base, (uintptr_t)ring->mapping.base, __ATOMIC_RELEASE);
		if (i >= n_slots)
			__atomic_store_n(&n_slots, i + 1, __ATOMIC_RELEASE);
		ring->slot = i;
		err = 0;
		break;
	}
	pthread_mutex_unlock(&open_mutex);
	return err;
}

static void leave(struct relay_ring *ring)
{
	pthread_mutex_lock(&open_mutex);
	__atomic_store_n(&open_rings[ring->slot].base, 0, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&open_mutex);
}

static bool is_in(uint32_t slot, const void *record)
{
	uintptr_t base = __atomic_load_n(&open_rings[slot].base, __ATOMIC_ACQUIRE);
	/* Other entries may change meanwhile, but not that of a ring of which the caller has a record. */
	return base && (uintptr_t)record - base < open_rings[slot].bytes;
}

struct relay_ring *relay_ring_of(const void *record)
{
	if (__builtin_expect(is_in(last_slot, record), 1))
		return open_rings[last_slot].ring;
	for (uint32_t i = 0; i < __atomic_load_n(&n_slots, __ATOMIC_ACQUIRE); i++) {
		if (!is_in(i, record))
			continue;
		last_slot = i;
		return open_rings[i].ring;
	}
	return NULL;
}

/* --- opening --- */

static void place(struct relay_ring *ring, const struct relay_ring_geometry *geometry,
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
	ring->largest = geometry->size - 2 * RELAY_RING_HEADER_BYTES;
	if (ring->largest > RELAY_RING_RECORD_MAX)
		ring->largest = RELAY_RING_RECORD_MAX;
	ring->cpu = geometry->cpu;
	ring->mode = geometry->mode;
	ring->scheme = geometry->scheme;
	ring->geometry = *geometry;
}

/* Initialize a ring from its mapped memory, which is unmapped on failure. */
static int use(struct relay_ring *ring, const struct relay_ring_geometry *geometry)
{
	struct relay_ring_layout layout;
	int err = relay_ring_check_geometry(geometry, ring->mapping.bytes, &layout);
	if (!err) {
		place(ring, geometry, &layout);
		err = enter(ring);
	}
	if (err) {
		relay_mapping_unmap(&ring->mapping);
		return err;
	}
	relay_ring_claims_init(ring);
	relay_fence_register();
	return 0;
}

/* fd belongs to the ring, also on failure. */
static int init(struct relay_ring *ring, int fd)
{
	*ring = (struct relay_ring){0};
	int err = relay_mapping_map(&ring->mapping, fd);
	if (err) {
		close(fd);
		return err;
	}
	/* Copy the geometry once, check the copy, and use it. */
	struct relay_ring_geometry geometry =
	    ((struct relay_ring_state *)(ring->mapping.base + ring->mapping.bytes - RELAY_PAGE_BYTES))->geometry;
	return use(ring, &geometry);
}

/* Make a ring in private memory. */
static int init_private(struct relay_ring *ring, int fd, const struct relay_ring_geometry *geometry)
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
	return use(ring, &private);
}

struct relay_ring *relay_ring_new_remote(struct relay_ring_remote *remote, const struct relay_ring_geometry *geometry,
                                         int fd)
{
	struct relay_ring *ring = malloc(sizeof(*ring));
	int copy = ring ? fcntl(fd, F_DUPFD_CLOEXEC, 3) : -1;
	int err = !ring ? -ENOMEM : copy < 0 ? -errno : init_private(ring, copy, geometry);
	if (!err) {
		ring->remote = remote;
		return ring;
	}
	free(ring);
	relay_ring_remote_close(remote);
	errno = -err;
	return NULL;
}

static struct relay_ring *open_ring_fd(int fd)
{
	if (fd < 0) {
		errno = -fd;
		return NULL;
	}
	struct relay_ring *ring = malloc(sizeof(*ring));
	int err = ring ? init(ring, fd) : -ENOMEM;
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
	return open_ring_fd(relay_file_open(mem_file));
}

struct relay_ring *relay_ring_fdopen(int fd)
{
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	return open_ring_fd(copy < 0 ? -errno : copy);
}

void relay_ring_close(struct relay_ring *ring)
{
	if (!ring)
		return;
	relay_ring_abort(ring);
	leave(ring);
	relay_ring_remote_close(ring->remote);
	relay_mapping_unmap(&ring->mapping);
	free(ring);
}

int relay_ring_fd(const struct relay_ring *ring)
{
	return ring ? ring->mapping.file.fd : -EBADF;
}
