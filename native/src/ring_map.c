/* SPDX-License-Identifier: MIT */
/*
 * Taking a ring into this process, and finding it again from a record's address.
 *
 * The kernel finds a ring from its record by the header's page number. That is shared memory and anybody's: here a
 * table tells which addresses are whose. It never moves, because signal handlers walk it while others change it: an
 * entry counts while its `base` is not 0.
 */
#define _GNU_SOURCE
#include "ring_map.h"

#include "libc.h"
#include "ring_claims.h"
#include "ring_remote.h"
#include "rseq.h"
#include "sleep.h"
#include "store_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
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

/* --- layout --- */

struct layout {
	uint64_t ready_at, claims_at, state_at, file_bytes;
};

static bool layout_of(uint64_t size, struct layout *layout)
{
	if (size < RELAY_PAGE_BYTES || size > RELAY_RING_SIZE_MAX || size & (size - 1))
		return false;
	layout->ready_at = RELAY_RING_DATA_AT + 2 * size;
	layout->claims_at = layout->ready_at + RELAY_RING_N_READY * sizeof(uint64_t) + RELAY_RING_CLAIMS_GAP;
	layout->state_at = layout->claims_at + RELAY_RING_N_CLAIMS * sizeof(struct relay_ring_claim) +
	                   RELAY_PAGE_BYTES - RELAY_RING_CLAIMS_GAP;
	layout->file_bytes = layout->state_at + RELAY_PAGE_BYTES;
	return true;
}

uint64_t relay_ring_file_bytes(uint64_t ring_size)
{
	struct layout layout;
	return layout_of(ring_size, &layout) ? layout.file_bytes : 0;
}

static int check_geometry(const struct relay_ring_geometry *geometry, uint64_t file_bytes, struct layout *layout)
{
	if (geometry->magic != RELAY_RING_MAGIC)
		return geometry->magic == RELAY_MAGIC ? -EMEDIUMTYPE : -EBADMSG;
	if (geometry->version != RELAY_RING_VERSION)
		return -EPROTO;
	if (!layout_of(geometry->size, layout) || layout->file_bytes != file_bytes ||
	    geometry->file_bytes != file_bytes || geometry->n_claims != RELAY_RING_N_CLAIMS ||
	    geometry->n_ready != RELAY_RING_N_READY || geometry->mode > RELAY_OVERWRITE ||
	    geometry->buffers > RELAY_SINGLE || geometry->n_rings == 0 || geometry->cpu >= geometry->n_rings ||
	    geometry->scheme < RELAY_RSEQ || geometry->scheme > RELAY_LOCKLESS || geometry->read > RELAY_READ_WAIT ||
	    geometry->framing > RELAY_FRAMING_LINE)
		return -EBADMSG;
	return 0;
}

/* --- making --- */

struct making {
	const struct relay_ring_spec *spec;
	struct layout layout;
};

static int check_spec(const struct relay_ring_spec *spec, struct layout *layout)
{
	if (spec->size < sizeof(*spec) || !layout_of(spec->ring_size, layout) || spec->n_rings == 0 ||
	    spec->n_rings > RELAY_MAX_BUFFERS || spec->mode > RELAY_OVERWRITE || spec->scheme > RELAY_LOCKLESS ||
	    spec->buffers > RELAY_SINGLE || spec->read > RELAY_READ_WAIT || spec->framing > RELAY_FRAMING_LINE ||
	    spec->file_mode & ~0777u || (spec->buffers != RELAY_PERCPU && spec->n_rings != 1))
		return -EINVAL;
	if (spec->scheme == RELAY_RSEQ && relay_scheme_default(spec->buffers) != RELAY_RSEQ)
		return -EINVAL;
	return 0;
}

static int write_state(int fd, const struct making *making, uint32_t cpu)
{
	const struct relay_ring_spec *spec = making->spec;
	struct relay_ring_state *state =
	    mmap(NULL, RELAY_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)making->layout.state_at);
	if (state == MAP_FAILED)
		return -errno;
	state->geometry = (struct relay_ring_geometry){
	    .magic = RELAY_RING_MAGIC,
	    .version = RELAY_RING_VERSION,
	    .cpu = cpu,
	    .size = spec->ring_size,
	    .file_bytes = making->layout.file_bytes,
	    .n_rings = spec->n_rings,
	    .n_claims = RELAY_RING_N_CLAIMS,
	    .n_ready = RELAY_RING_N_READY,
	    .mode = spec->mode,
	    .scheme = spec->scheme ? spec->scheme : relay_scheme_default(spec->buffers),
	    .buffers = spec->buffers,
	    .read = spec->read,
	    .framing = spec->framing,
	};
	munmap(state, RELAY_PAGE_BYTES);
	return 0;
}

static int make_ring(int dir_fd, const char *name, uint32_t cpu, const void *arg)
{
	const struct making *making = arg;
	const struct relay_ring_spec *spec = making->spec;
	int fd = relay_shm_create(dir_fd, name, making->layout.file_bytes, spec->file_mode, spec->uid, spec->gid);
	if (fd < 0)
		return fd;
	int err = write_state(fd, making, cpu);
	close(fd);
	return err;
}

int relay_ring_create(const char *dir, const struct relay_ring_spec *spec)
{
	struct making making = {.spec = spec};
	int err = check_spec(spec, &making.layout);
	return err ? err : relay_make_dir(dir, spec->n_rings, make_ring, &making);
}

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
		__atomic_store_n(&open_rings[i].base, (uintptr_t)ring->shm.base, __ATOMIC_RELEASE);
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
	/* Other entries may change meanwhile; that of a record in the caller's hands does not. */
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

static void place(struct relay_ring *ring, const struct relay_ring_geometry *geometry, const struct layout *layout)
{
	unsigned char *base = ring->shm.base;
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
	ring->n_rings = geometry->n_rings;
	ring->mode = geometry->mode;
	ring->scheme = geometry->scheme;
	ring->buffers = geometry->buffers;
	ring->read = geometry->read;
	ring->framing = geometry->framing;
}

/* Use the memory that the ring has got. On failure it has none any more. */
static int use(struct relay_ring *ring, const struct relay_ring_geometry *geometry)
{
	struct layout layout;
	int err = check_geometry(geometry, ring->shm.bytes, &layout);
	if (!err) {
		place(ring, geometry, &layout);
		err = enter(ring);
	}
	if (err) {
		relay_shm_unmap(&ring->shm);
		return err;
	}
	relay_ring_claims_forget_kept(ring);
	relay_fence_register();
	return 0;
}

/* fd belongs to the ring, also on failure. */
static int init(struct relay_ring *ring, int fd)
{
	*ring = (struct relay_ring){0};
	int err = relay_shm_map(&ring->shm, fd);
	if (err) {
		close(fd);
		return err;
	}
	/* One copy: checked, then used. */
	struct relay_ring_geometry geometry =
	    ((struct relay_ring_state *)(ring->shm.base + ring->shm.bytes - RELAY_PAGE_BYTES))->geometry;
	return use(ring, &geometry);
}

/* The same with private memory. */
static int init_private(struct relay_ring *ring, int fd, const struct relay_ring_geometry *geometry)
{
	struct relay_ring_geometry private = *geometry;
	private.size = RELAY_PAGE_BYTES;
	private.file_bytes = relay_ring_file_bytes(private.size);
	*ring = (struct relay_ring){0};
	int err = relay_shm_map_private(&ring->shm, fd, private.file_bytes);
	if (err) {
		close(fd);
		return err;
	}
	((struct relay_ring_state *)(ring->shm.base + ring->shm.bytes - RELAY_PAGE_BYTES))->geometry = private;
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

static struct relay_ring *take(int fd)
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
	return take(relay_file_open(mem_file));
}

struct relay_ring *relay_ring_fdopen(int fd)
{
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	return take(copy < 0 ? -errno : copy);
}

void relay_ring_close(struct relay_ring *ring)
{
	if (!ring)
		return;
	relay_ring_abort(ring);
	leave(ring);
	relay_ring_remote_close(ring->remote);
	relay_shm_unmap(&ring->shm);
	free(ring);
}

int relay_ring_fd(const struct relay_ring *ring)
{
	return ring ? ring->shm.file.fd : -EBADF;
}
