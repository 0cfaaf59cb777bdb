/* SPDX-License-Identifier: MIT */
/* Making the files of a channel of relay buffers, declared in <relayfs/store.h> and buffer/make.h. */
#include "buffer/make.h"

#include "base/clock.h"
#include "base/directory.h"
#include "base/mapping.h"
#include "buffer/buffer.h"
#include "buffer/geometry.h"
#include "store/options.h"

#include <sys/mman.h>
#include <unistd.h>

static int check_spec(const struct relay_spec *spec, struct relay_layout *layout)
{
	if (spec->size < sizeof(*spec) || !relay_layout_of(spec->subbuf_size, spec->n_subbufs, layout) ||
	    spec->n_buffers == 0 || spec->n_buffers > RELAY_MAX_BUFFERS || !relay_options_allow_spec(spec) ||
	    !relay_reserves_fit(spec->subbuf_size, spec->start_reserve, spec->end_reserve, spec->channel_start_reserve,
	                        spec->times) ||
	    !relay_times_fit(spec->times, spec->format, spec->mode, spec->reserve) ||
	    (spec->times && spec->timestamp && spec->timestamp != spec->times) ||
	    !relay_format_fits(spec->format, spec->timestamp, spec->start_reserve, spec->mode) ||
	    spec->file_mode & ~0777u || (spec->buffers != RELAY_PERCPU && spec->n_buffers != 1))
		return -EINVAL;
	if (spec->scheme == RELAY_RSEQ && relay_scheme_default(spec->buffers) != RELAY_RSEQ)
		return -EINVAL;
	uint32_t clock = spec->times ? spec->times : spec->timestamp;
	return clock && !relay_clock_is_available(clock) ? -EINVAL : 0;
}

static int write_control(int fd, const struct relay_layout *layout, const struct relay_spec *spec, uint32_t cpu,
                         uint32_t flags)
{
	struct relay_control *control =
	    mmap(NULL, RELAY_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)layout->control_at);
	if (control == MAP_FAILED)
		return -errno;
	control->flags = flags;
	control->switch_time_ns = relay_clock_ns(CLOCK_REALTIME);
	control->geometry = (struct relay_geometry){
	    .magic = RELAY_MAGIC,
	    .version = RELAY_LAYOUT_VERSION,
	    .cpu = cpu,
	    .file_bytes = layout->file_bytes,
	    .n_buffers = spec->n_buffers,
	    .n_claims = RELAY_N_CLAIMS,
	    .format = spec->format,
	    .pid = spec->pid,
	};
	relay_options_to_geometry(spec, &control->geometry);
	munmap(control, RELAY_PAGE_BYTES);
	return 0;
}

struct making {
	const struct relay_spec *spec;
	struct relay_layout layout;
	bool is_sparse;
};

static int make_buffer(int dir_fd, const char *name, uint32_t cpu, const void *arg)
{
	const struct making *making = arg;
	const struct relay_spec *spec = making->spec;
	int fd = relay_mapping_create_sparse(dir_fd, name, making->is_sparse ? making->layout.subbufs_at : 0,
	                                     making->layout.file_bytes, spec->file_mode, spec->uid, spec->gid);
	if (fd < 0)
		return fd;
	int err = write_control(fd, &making->layout, spec, cpu, making->is_sparse ? RELAY_UNALLOCATED : 0);
	close(fd);
	return err;
}

static int create(const char *dir, struct making *making)
{
	int err = check_spec(making->spec, &making->layout);
	return err ? err : relay_make_dir(dir, making->spec->n_buffers, make_buffer, making);
}

int relay_store_create(const char *dir, const struct relay_spec *spec)
{
	return create(dir, &(struct making){.spec = spec});
}

int relay_store_create_sparse(const char *dir, const struct relay_spec *spec)
{
	return spec->pid ? create(dir, &(struct making){.spec = spec, .is_sparse = true}) : -EINVAL;
}

int relay_store_create_unnamed(const char *dir, const struct relay_spec *spec, int *fds)
{
	struct relay_layout layout;
	int err = check_spec(spec, &layout);
	uint32_t n = 0;
	while (!err && n < spec->n_buffers) {
		fds[n] = relay_mapping_create_unnamed(dir, layout.file_bytes);
		err = fds[n] < 0 ? fds[n] : write_control(fds[n], &layout, spec, n, 0);
		n += fds[n] >= 0;
	}
	while (err && n)
		close(fds[--n]);
	return err;
}
