/* SPDX-License-Identifier: MIT */
/* Making the memory files of a channel of rings: relay_ring_create() of <relayfs/ring_store.h>. */
#define _GNU_SOURCE
#include "base/directory.h"
#include "base/mapping.h"
#include "ring/geometry.h"
#include "store/options.h"

#include <errno.h>
#include <relayfs/store.h>
#include <sys/mman.h>
#include <unistd.h>

struct making {
	const struct relay_ring_spec *spec;
	struct relay_ring_layout layout;
};

static int check_spec(const struct relay_ring_spec *spec, struct relay_ring_layout *layout)
{
	if (spec->size < sizeof(*spec) || !relay_ring_layout_of(spec->ring_size, layout) || spec->n_rings == 0 ||
	    spec->n_rings > RELAY_MAX_BUFFERS || !relay_options_allow_ring_spec(spec) || spec->file_mode & ~0777u ||
	    (spec->buffers != RELAY_PERCPU && spec->n_rings != 1))
		return -EINVAL;
	if (spec->scheme == RELAY_RSEQ && relay_scheme_default(spec->buffers) != RELAY_RSEQ)
		return -EINVAL;
	return spec->times && !relay_clock_is_available(spec->times) ? -EINVAL : 0;
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
	    .file_bytes = making->layout.file_bytes,
	    .n_rings = spec->n_rings,
	    .n_claims = RELAY_N_CLAIMS,
	    .n_ready = RELAY_RING_N_READY,
	};
	relay_options_to_ring_geometry(spec, &state->geometry);
	munmap(state, RELAY_PAGE_BYTES);
	return 0;
}

static int make_ring(int dir_fd, const char *name, uint32_t cpu, const void *arg)
{
	const struct making *making = arg;
	const struct relay_ring_spec *spec = making->spec;
	int fd = relay_mapping_create(dir_fd, name, making->layout.file_bytes, spec->file_mode, spec->uid, spec->gid);
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
