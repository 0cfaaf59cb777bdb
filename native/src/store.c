/* SPDX-License-Identifier: MIT */
/* Making and removing a channel in a store: all of it, or nothing. */
#define _GNU_SOURCE
#include "buf.h"
#include "buf_geometry.h"
#include "clock.h"
#include "immutable.h"
#include "libc.h"
#include "rseq.h"
#include "store_dir.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

/* The directory stays its maker's: whoever else may write to it could put another file under a name. Programs
 * that map the store's files may pass through; what they may open, the files' own modes say. */
enum { DIR_MODE = 0711, IMPLICIT_MODE = RELAY_IMPLICIT_MARK | 0755, HIDDEN_TRIES = 1000 };

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
	if (got > 0 && last < RELAY_MAX_BUFFERS)
		return last + 1;
	long configured = sysconf(_SC_NPROCESSORS_CONF);
	return configured > 0 ? (unsigned)configured : 1;
}

uint32_t relay_scheme_default(uint32_t buffers)
{
	return buffers == RELAY_PERCPU && relay_rseq_registered() ? RELAY_RSEQ : RELAY_LOCKLESS;
}

static int check_spec(const struct relay_spec *spec, struct relay_layout *layout)
{
	if (spec->size < sizeof(*spec) || !relay_layout_of(spec->subbuf_size, spec->n_subbufs, layout) ||
	    spec->n_buffers == 0 || spec->n_buffers > RELAY_MAX_BUFFERS || spec->mode > RELAY_CALLBACK ||
	    spec->scheme > RELAY_LOCKING || spec->buffers > RELAY_SINGLE || spec->delivery > RELAY_PACKET ||
	    spec->read > RELAY_READ_WAIT || spec->reserve > RELAY_RESERVE_VISIBLE || spec->timestamp > RELAY_TSC ||
	    !relay_reserves_fit(spec->subbuf_size, spec->start_reserve, spec->end_reserve,
	                        spec->channel_start_reserve) ||
	    !relay_format_fits(spec->format, spec->timestamp, spec->start_reserve, spec->mode) ||
	    spec->file_mode & ~0777u || (spec->buffers != RELAY_PERCPU && spec->n_buffers != 1))
		return -EINVAL;
	if (spec->scheme == RELAY_RSEQ && relay_scheme_default(spec->buffers) != RELAY_RSEQ)
		return -EINVAL;
	return spec->timestamp == RELAY_TSC && !relay_has_tsc() ? -EINVAL : 0;
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
	    .timestamp = spec->timestamp,
	    .start_reserve = spec->start_reserve,
	    .end_reserve = spec->end_reserve,
	    .channel_start_reserve = spec->channel_start_reserve,
	    .format = spec->format,
	    .pid = spec->pid,
	};
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
	int fd = relay_shm_create_sparse(dir_fd, name, making->is_sparse ? making->layout.subbufs_at : 0,
	                                 making->layout.file_bytes, spec->file_mode, spec->uid, spec->gid);
	if (fd < 0)
		return fd;
	int err = write_control(fd, &making->layout, spec, cpu, making->is_sparse ? RELAY_UNALLOCATED : 0);
	close(fd);
	return err;
}

static int link_open_file(int fd, int dir_fd, const char *name)
{
	char open_file[64];
	snprintf(open_file, sizeof(open_file), "/proc/self/fd/%d", fd);
	return linkat(AT_FDCWD, open_file, dir_fd, name, AT_SYMLINK_FOLLOW) ? -errno : 0;
}

/* The same file, reached through the mount of dir_fd; -EXDEV: it lies elsewhere, or only root can do this. */
static int open_beside(int fd, int dir_fd)
{
	union {
		struct file_handle handle;
		char room[sizeof(struct file_handle) + MAX_HANDLE_SZ];
	} file = {.handle.handle_bytes = MAX_HANDLE_SZ};
	struct stat there, here;
	int mount_id;
	if (fstat(fd, &there) || fstat(dir_fd, &here) || there.st_dev != here.st_dev ||
	    name_to_handle_at(fd, "", &file.handle, &mount_id, AT_EMPTY_PATH))
		return -EXDEV;
	int beside = open_by_handle_at(dir_fd, &file.handle, O_RDWR | O_CLOEXEC);
	return beside < 0 ? -EXDEV : beside;
}

static int link_buffer(int dir_fd, const char *name, uint32_t cpu, const void *arg)
{
	int fd = ((const int *)arg)[cpu];
	int err = link_open_file(fd, dir_fd, name);
	if (err != -EXDEV)
		return err;
	/* Linux links within one mount only; a program in a mount namespace of its own has another one of this store. */
	int beside = open_beside(fd, dir_fd);
	if (beside < 0)
		return beside;
	err = link_open_file(beside, dir_fd, name);
	close(beside);
	return err;
}

/* What relay_store_copy() is asked for. */
struct copying {
	const int *fds;
	uint32_t file_mode, uid, gid;
};

static int copy_contents(int to, int from, uint64_t bytes)
{
	for (off_t at = 0; (uint64_t)at < bytes;) {
		ssize_t n = sendfile(to, from, &at, bytes - (uint64_t)at);
		if (n <= 0)
			return n ? -errno : -EBADMSG; /* its owner has truncated it meanwhile */
	}
	return 0;
}

static int copy_buffer(int dir_fd, const char *name, uint32_t cpu, const void *arg)
{
	struct stat st;
	const struct copying *copying = arg;
	if (fstat(copying->fds[cpu], &st))
		return -errno;
	uint64_t bytes = (uint64_t)st.st_size;
	int fd = relay_shm_create(dir_fd, name, bytes, copying->file_mode, copying->uid, copying->gid);
	if (fd < 0)
		return fd;
	int err = copy_contents(fd, copying->fds[cpu], bytes);
	close(fd);
	return err;
}

static void remove_dir(const char *dir, uint32_t n_buffers)
{
	char name[32];
	int dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	for (uint32_t cpu = 0; dir_fd >= 0 && cpu < n_buffers; cpu++) {
		snprintf(name, sizeof(name), "mem%u", cpu);
		relay_file_unlinkat(dir_fd, name);
	}
	if (dir_fd >= 0)
		close(dir_fd);
	rmdir(dir);
}

/* "PARENT/.new-PID-N-CHANNEL": hidden until it is whole, or before it goes. */
static char *hidden_name(const char *dir, const char *why, unsigned n)
{
	const char *slash = strrchr(dir, '/');
	int parent = slash ? (int)(slash - dir + 1) : 0;
	char *name = NULL;
	int length = asprintf(&name, "%.*s.%s-%ld-%u-%s", parent, dir, why, (long)getpid(), n, dir + parent);
	return length < 0 ? NULL : name;
}

/* Do it under the first such name that is free: who died over one may have had our process id. */
static int hide(const char *dir, const char *why, int (*act)(const char *dir, const char *hidden), char **hidden)
{
	int err = -EEXIST;
	*hidden = NULL;
	for (unsigned n = 0; err == -EEXIST && n < HIDDEN_TRIES; n++) {
		free(*hidden);
		*hidden = hidden_name(dir, why, n);
		err = *hidden ? act(dir, *hidden) : -ENOMEM;
	}
	return err;
}

static int make_hidden(const char *dir, const char *hidden)
{
	(void)dir;
	return mkdir(hidden, 0700) ? -errno : 0;
}

static int move_away(const char *dir, const char *hidden)
{
	return relay_rename_new(AT_FDCWD, dir, AT_FDCWD, hidden) ? -errno : 0;
}

static int fill(const char *staging, uint32_t n_buffers, relay_put_buffer *put, const void *arg)
{
	int dir_fd = open(staging, O_RDONLY | O_DIRECTORY | O_CLOEXEC), err = 0;
	if (dir_fd < 0)
		return -errno;
	for (uint32_t cpu = 0; !err && cpu < n_buffers; cpu++) {
		char name[32];
		snprintf(name, sizeof(name), "mem%u", cpu);
		err = put(dir_fd, name, cpu, arg);
	}
	if (!err && fchmod(dir_fd, DIR_MODE))
		err = -errno;
	close(dir_fd);
	return err;
}

int relay_make_dir(const char *dir, uint32_t n_buffers, relay_put_buffer *put, const void *arg)
{
	char *staging;
	int err = hide(dir, "new", make_hidden, &staging);
	if (!err) {
		err = fill(staging, n_buffers, put, arg);
		/* An empty directory would be replaced by rename(2). */
		if (!err && relay_rename_new(AT_FDCWD, staging, AT_FDCWD, dir))
			err = -errno;
		if (err)
			remove_dir(staging, n_buffers);
	}
	free(staging);
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
		fds[n] = relay_shm_create_unnamed(dir, layout.file_bytes);
		err = fds[n] < 0 ? fds[n] : write_control(fds[n], &layout, spec, n, 0);
		n += fds[n] >= 0;
	}
	while (err && n)
		close(fds[--n]);
	return err;
}

int relay_store_adopt(const char *dir, const int *fds, size_t n)
{
	if (n == 0 || n > RELAY_MAX_BUFFERS)
		return -EINVAL;
	/* Asked before: a file that loses its name again never gets another. */
	if (access(dir, F_OK) == 0)
		return -EEXIST;
	return relay_make_dir(dir, (uint32_t)n, link_buffer, fds);
}

int relay_store_copy(const char *dir, const int *fds, size_t n, uint32_t file_mode, uint32_t uid, uint32_t gid)
{
	struct copying copying = {.fds = fds, .file_mode = file_mode, .uid = uid, .gid = gid};
	if (n == 0 || n > RELAY_MAX_BUFFERS || file_mode & ~0777u)
		return -EINVAL;
	return relay_make_dir(dir, (uint32_t)n, copy_buffer, &copying);
}

int relay_store_remove(const char *dir, uint32_t n_buffers)
{
	char *hidden;
	int err = hide(dir, "removed", move_away, &hidden);
	if (!err)
		remove_dir(hidden, n_buffers);
	free(hidden);
	return err;
}

/* The mark lies in the mode, so that it goes with the directory in one rmdir(2); it is there before the directory has its name. */
int relay_implicit_make(const char *dir)
{
	char *staging;
	int err = hide(dir, "new", make_hidden, &staging);
	if (!err) {
		if (chmod(staging, IMPLICIT_MODE) || relay_rename_new(AT_FDCWD, staging, AT_FDCWD, dir))
			err = -errno;
		if (err)
			rmdir(staging);
	}
	free(staging);
	return err;
}

int relay_implicit_is(const char *dir)
{
	struct stat st;
	return lstat(dir, &st) == 0 && st.st_mode == (S_IFDIR | IMPLICIT_MODE) && st.st_uid == geteuid() &&
	       st.st_gid == getegid();
}
