/* SPDX-License-Identifier: MIT */
/* Making a channel in a store: all of it, or nothing. */
#define _GNU_SOURCE
#include "buf.h"
#include "rseq.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MAX_BUFFERS = 1 << 16 };

/* The directory stays its maker's: whoever else may write to it could put another file under a name. Programs
 * that map the store's files may pass through; what they may open, the files' own modes say. */
enum { DIR_MODE = 0711 };

unsigned relay_n_possible_cpus(void)
{
	char text[4096] = "";
	unsigned last = 0;
	int fd = open("/sys/devices/system/cpu/possible", O_RDONLY | O_CLOEXEC);
	ssize_t got = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);
	if (fd >= 0)
		close(fd);
	/* "0-3,8-11": the last number is the largest */
	for (ssize_t i = 0; i < got;)
		if (text[i] >= '0' && text[i] <= '9')
			for (last = 0; i < got && text[i] >= '0' && text[i] <= '9'; i++)
				last = last * 10 + (unsigned)(text[i] - '0');
		else
			i++;
	if (got > 0 && last < MAX_BUFFERS)
		return last + 1;
	long configured = sysconf(_SC_NPROCESSORS_CONF);
	return configured > 0 ? (unsigned)configured : 1;
}

uint32_t relay_scheme_default(uint32_t buffers)
{
	return buffers == RELAY_PERCPU && relay_rseq_registered() ? RELAY_SCHEME_RSEQ : RELAY_SCHEME_LOCKLESS;
}

static int check_spec(const struct relay_spec *spec, struct relay_layout *layout)
{
	if (spec->size < sizeof(*spec) || !relay_layout_of(spec->subbuf_size, spec->n_subbufs, layout) ||
	    spec->n_buffers == 0 || spec->n_buffers > MAX_BUFFERS || spec->mode > RELAY_CALLBACK ||
	    spec->scheme > RELAY_SCHEME_LOCKLESS || spec->buffers > RELAY_SINGLE || spec->delivery > RELAY_PACKET ||
	    spec->read > RELAY_READ_WAIT || spec->reserve > RELAY_RESERVE_VISIBLE || spec->file_mode & ~0777u ||
	    (spec->buffers != RELAY_PERCPU && spec->n_buffers != 1))
		return -EINVAL;
	if (spec->scheme == RELAY_SCHEME_RSEQ && relay_scheme_default(spec->buffers) != RELAY_SCHEME_RSEQ)
		return -EINVAL;
	return 0;
}

static int write_control(int fd, const struct relay_layout *layout, const struct relay_spec *spec, uint32_t cpu)
{
	struct relay_control *control =
	    mmap(NULL, RELAY_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)layout->control_at);
	if (control == MAP_FAILED)
		return -errno;
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	control->switch_time_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	control->geometry = (struct relay_geometry){
	    .magic = RELAY_MAGIC,
	    .version = RELAY_LAYOUT_VERSION,
	    .cpu = cpu,
	    .subbuf_size = spec->subbuf_size,
	    .n_subbufs = spec->n_subbufs,
	    .file_bytes = layout->file_bytes,
	    .n_buffers = spec->n_buffers,
	    .n_claims = RELAY_N_CLAIMS,
	    .mode = spec->mode,
	    .scheme = spec->scheme ? spec->scheme : relay_scheme_default(spec->buffers),
	    .buffers = spec->buffers,
	    .delivery = spec->delivery,
	    .read = spec->read,
	    .flush_interval_ms = spec->flush_interval_ms,
	    .reserve = spec->reserve,
	};
	munmap(control, RELAY_PAGE_BYTES);
	return 0;
}

static int make_buffer(int dir_fd, const struct relay_layout *layout, const struct relay_spec *spec, uint32_t cpu)
{
	char name[32];
	snprintf(name, sizeof(name), "mem%u", cpu);
	int fd = relay_shm_create(dir_fd, name, layout->file_bytes, spec->file_mode, spec->uid, spec->gid);
	if (fd < 0)
		return fd;
	int err = write_control(fd, layout, spec, cpu);
	close(fd);
	return err;
}

static void remove_dir(int dir_fd, const char *dir, uint32_t n_buffers)
{
	char name[32];
	for (uint32_t cpu = 0; cpu < n_buffers; cpu++) {
		snprintf(name, sizeof(name), "mem%u", cpu);
		unlinkat(dir_fd, name, 0);
	}
	rmdir(dir);
}

/* "PARENT/.new-PID-CHANNEL": hidden until it is whole. */
static char *staging_name(const char *dir)
{
	const char *slash = strrchr(dir, '/');
	int parent = slash ? (int)(slash - dir + 1) : 0;
	char *name = NULL;
	return asprintf(&name, "%.*s.new-%ld-%s", parent, dir, (long)getpid(), dir + parent) < 0 ? NULL : name;
}

static int fill(const char *staging, const struct relay_layout *layout, const struct relay_spec *spec)
{
	int dir_fd = open(staging, O_RDONLY | O_DIRECTORY | O_CLOEXEC), err = 0;
	if (dir_fd < 0)
		return -errno;
	for (uint32_t cpu = 0; !err && cpu < spec->n_buffers; cpu++)
		err = make_buffer(dir_fd, layout, spec, cpu);
	if (!err && fchmod(dir_fd, DIR_MODE))
		err = -errno;
	if (err)
		remove_dir(dir_fd, staging, spec->n_buffers);
	close(dir_fd);
	return err;
}

int relay_store_create(const char *dir, const struct relay_spec *spec)
{
	struct relay_layout layout;
	int err = check_spec(spec, &layout);
	if (err)
		return err;
	char *staging = staging_name(dir);
	if (!staging)
		return -ENOMEM;
	if (mkdir(staging, 0700)) {
		err = -errno;
	} else {
		err = fill(staging, &layout, spec);
		/* An empty directory would be replaced by rename(2) without RENAME_NOREPLACE. */
		if (!err && renameat2(AT_FDCWD, staging, AT_FDCWD, dir, RENAME_NOREPLACE)) {
			err = -errno;
			int dir_fd = open(staging, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
			remove_dir(dir_fd, staging, spec->n_buffers);
			close(dir_fd);
		}
	}
	free(staging);
	return err;
}
