/* SPDX-License-Identifier: MIT */
/* Opening the rings of a channel by its path: one for all CPUs, or one for each. */
#define _GNU_SOURCE
#include "base/directory.h"
#include "channel/direct.h"
#include "ring/remote.h"
#include "store/options.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* The result of relay_rings_attach(), and what relay_rings_close() needs. */
struct attached {
	struct relay_rings rings;
	int *owner_fds; /* open files of the mount; when they are closed, the server ends this process's reservations */
};

/* --- attaching --- */

/* Map a ring. fd: of its file in the mount, or in the store. */
static struct relay_ring *map(int fd, const char *mem)
{
	struct relay_ring *ring = relay_ring_fdopen(fd);
	if (ring || errno != ENODEV)
		return ring;
	int backing = relay_mapping_open_backing(mem);
	if (backing < 0) {
		errno = -backing;
		return NULL;
	}
	ring = relay_ring_fdopen(backing);
	int err = errno;
	close(backing);
	errno = err;
	return ring;
}

/* Open a ring that cannot be mapped. */
static struct relay_ring *open_remote(int fd, const struct relay_place *place, uint32_t cpu)
{
	struct relay_ring_geometry geometry;
	int err = relay_ring_remote_geometry(place, &geometry);
	geometry.cpu = cpu;
	if (err) {
		errno = -err;
		return NULL;
	}
	struct relay_ring_remote *remote = relay_ring_remote_open(place, &geometry);
	return remote ? relay_ring_new_remote(remote, &geometry, fd) : NULL;
}

static int attach_ring(const char *mem, const struct relay_place *place, uint32_t cpu, struct relay_ring **ring,
                       int *owner_fd)
{
	*owner_fd = relay_mapping_open(mem, O_RDWR, !place->in_store);
	if (*owner_fd < 0)
		return *owner_fd;
	*ring = map(*owner_fd, mem);
	if (!*ring && errno == ENODEV && !place->in_store)
		*ring = open_remote(*owner_fd, place, cpu);
	int err = !*ring ? -errno : (*ring)->cpu != cpu ? -EBADMSG : 0;
	if (err) {
		relay_ring_close(*ring);
		close(*owner_fd);
		return err;
	}
	uint64_t token = 0;
	if ((*ring)->remote)
		return 0;
	if (pread(*owner_fd, &token, sizeof(token), (off_t)(*ring)->mapping.bytes) == sizeof(token))
		relay_ring_set_token(*ring, token);
	return 0;
}

/* Open one more ring. */
static int attach_next(struct attached *attached, const struct relay_place *place)
{
	unsigned cpu = attached->rings.n;
	char *mem = relay_place_mem(place, cpu);
	int err = mem ? attach_ring(mem, place, cpu, &attached->rings.ring[cpu], &attached->owner_fds[cpu]) : -ENOMEM;
	free(mem);
	attached->rings.n += !err;
	return err;
}

static int make_ring_places(struct attached *attached, uint32_t n)
{
	struct relay_ring **ring = realloc(attached->rings.ring, n * sizeof(*ring));
	if (ring)
		attached->rings.ring = ring;
	int *owner_fds = realloc(attached->owner_fds, n * sizeof(*owner_fds));
	if (owner_fds)
		attached->owner_fds = owner_fds;
	return ring && owner_fds ? 0 : -ENOMEM;
}

/* The geometry of ring 0 contains the number of rings. */
static int attach_all(struct attached *attached, const struct relay_place *place)
{
	int err = make_ring_places(attached, 1);
	if (!err)
		err = attach_next(attached, place);
	uint32_t n = err ? 0 : attached->rings.ring[0]->geometry.n_rings;
	if (!err)
		err = n <= RELAY_MAX_BUFFERS ? make_ring_places(attached, n) : -EBADMSG;
	while (!err && attached->rings.n < n)
		err = attach_next(attached, place);
	return err;
}

static struct relay_rings *fail(int err)
{
	errno = -err;
	return NULL;
}

struct relay_rings *relay_rings_attach(const char *path)
{
	struct relay_place place;
	int err = relay_place_channel(&place, path);
	if (err)
		return fail(err);
	struct attached *attached = calloc(1, sizeof(*attached));
	err = attached ? attach_all(attached, &place) : -ENOMEM;
	relay_place_free(&place);
	if (!err)
		return &attached->rings;
	relay_rings_close(attached ? &attached->rings : NULL);
	return fail(err);
}

void relay_rings_close(struct relay_rings *rings)
{
	struct attached *attached = (struct attached *)rings;
	if (!rings)
		return;
	for (unsigned i = 0; i < rings->n; i++) {
		relay_ring_close(rings->ring[i]);
		/* Close this last: when it is closed, the server resolves reservations that are still open. */
		close(attached->owner_fds[i]);
	}
	free(rings->ring);
	free(attached->owner_fds);
	free(attached);
}

/* --- making --- */

static int create_rings_in_mount(const struct relay_place *place, const void *options)
{
	char *words;
	const char *type = relay_options_have(options, "type=") ? "" : "type=ring ";
	if (asprintf(&words, "%s%s", type, (const char *)options) < 0)
		return -ENOMEM;
	int err = relay_place_control(place, "create", words);
	free(words);
	return err;
}

static int create_rings_in_store(const struct relay_place *place, const void *options)
{
	struct relay_ring_spec spec;
	relay_ring_spec_default(&spec);
	int err = relay_options_parse_rings(options, &spec);
	return err ? err : relay_direct_create_rings(place, &spec);
}

struct relay_rings *relay_rings_create(const char *path, const char *options)
{
	struct relay_place place = {0};
	struct relay_operation operation = {create_rings_in_mount, create_rings_in_store, options ? options : ""};
	int err = relay_place_new(&place, path);
	if (!err)
		err = relay_carry_out(&place, &operation);
	relay_place_free(&place);
	return err ? fail(err) : relay_rings_attach(path);
}
