/* SPDX-License-Identifier: MIT */
/* Mapping a buffer's file, with a check of its geometry, and releasing it. */
#define _GNU_SOURCE
#include "buffer/open.h"

#include "base/futex.h"
#include "buffer/claims.h"
#include "buffer/geometry.h"
#include "buffer/hole_lists.h"
#include "buffer/subbuf_start.h"

#include <fcntl.h>
#include <inttypes.h>
#include <relayfs/check_store.h>
#include <relayfs/trace_store.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

typedef int map_function(struct relay_mapping *mapping, int fd);

/* relay_buf_init(), by one of the functions that map a file. */
static int init(struct rchan_buf *buf, int fd, map_function *map)
{
	*buf = (struct rchan_buf){0};
	int err = map(&buf->mapping, fd);
	if (err) {
		close(fd);
		return err;
	}
	unsigned char *base = buf->mapping.base;
	struct relay_control *control = (struct relay_control *)(base + buf->mapping.bytes - RELAY_PAGE_BYTES);
	/* copied once, because other processes may change it after the check */
	struct relay_geometry geometry = control->geometry;
	struct relay_layout layout;
	err = relay_check_geometry(&geometry, buf->mapping.bytes, &layout, NULL);
	if (err) {
		relay_mapping_unmap(&buf->mapping);
		return err;
	}
	buf->control = control;
	/* The memory is not zeroed, because a packet's header is written as a whole before it is read, and most of
	 * this memory is never used. */
	if (geometry.format == RELAY_PACKETS && !(buf->packets = malloc(RELAY_N_PACKETS * sizeof(*buf->packets)))) {
		relay_mapping_unmap(&buf->mapping);
		return -ENOMEM;
	}
	buf->data = base;
	buf->subbufs = (struct relay_subbuf *)(base + layout.subbufs_at);
	buf->claims = (struct relay_claim *)(base + layout.claims_at);
	buf->subbuf_size = geometry.subbuf_size;
	buf->n_subbufs = geometry.n_subbufs;
	buf->offset_bits = layout.offset_bits;
	buf->index_bits = layout.index_bits;
	buf->offset_mask = (1ull << layout.offset_bits) - 1;
	buf->index_mask = (1ull << layout.index_bits) - 1;
	buf->index_field = buf->index_mask << layout.offset_bits;
	buf->index_end = geometry.n_subbufs << layout.offset_bits;
	buf->index_scale = geometry.subbuf_size << (64 - layout.offset_bits);
	buf->lap = 1ull << (layout.offset_bits + layout.index_bits);
	buf->cpu = geometry.cpu;
	buf->mode = geometry.mode;
	buf->scheme = geometry.scheme;
	buf->is_timed = geometry.times != RELAY_NO_TIMESTAMP;
	buf->reserve = buf->is_timed ? RELAY_RESERVE_TIMED : geometry.reserve;
	buf->timestamp = geometry.timestamp;
	buf->start_reserve = geometry.start_reserve;
	buf->pid = geometry.pid;
	buf->channel_start_reserve = geometry.channel_start_reserve;
	buf->subbuf_end = geometry.subbuf_size - geometry.end_reserve;
	buf->largest = buf->subbuf_end - geometry.start_reserve;
	buf->begins = buf->mode == RELAY_CALLBACK || buf->timestamp || relay_reserved_at(buf, 0);
	buf->full_lap = buf->mode == RELAY_NO_OVERWRITE && !buf->begins ? buf->lap : UINT64_MAX;
	if (buf->reserve == RELAY_RESERVE_COMMIT && buf->largest >= sizeof(struct relay_hole))
		buf->n_reserve = buf->largest - sizeof(struct relay_hole) + 1;
	buf->begin = relay_subbuf_start_of_mode(buf);
	buf->geometry = geometry;
	relay_claims_init(buf);
	/* In a view nothing is written that a reader waits for. */
	if (map == relay_mapping_map)
		relay_fence_register();
	return 0;
}

int relay_buf_init(struct rchan_buf *buf, int fd)
{
	return init(buf, fd, relay_mapping_map);
}

void relay_buf_fini(struct rchan_buf *buf)
{
	relay_consume_abort(buf);
	relay_mapping_unmap(&buf->mapping);
	free(buf->relay_file);
	relay_holes_forget(&buf->holes);
	relay_holes_forget(&buf->holes_ahead);
	free(buf->packets);
	if (buf->hold)
		munmap(buf->hold, RELAY_PAGE_BYTES);
}

int relay_buf_attach(struct rchan_buf *buf, const char *mem_path, bool in_mount)
{
	int owner_fd = relay_mapping_open(mem_path, O_RDWR, in_mount);
	if (owner_fd < 0)
		return owner_fd;
	int fd = relay_descriptor_copy(owner_fd);
	int err = fd < 0 ? fd : relay_buf_init(buf, fd);
	if (err == -ENODEV) {
		fd = relay_mapping_open_backing(mem_path);
		err = fd < 0 ? fd : relay_buf_init(buf, fd);
	}
	if (!err && in_mount) {
		err = relay_buf_hold(buf, mem_path, owner_fd);
		if (err)
			relay_buf_fini(buf);
	}
	close(owner_fd);
	if (err)
		return err;
	/* The descriptor stays open if the data have no memory yet: the traced program may allocate it when it
	 * cannot open files any more. */
	if (in_mount || !relay_is_unallocated(buf))
		relay_buf_close_fd(buf);
	buf->may_block = true;
	return 0;
}

int relay_buf_hold(struct rchan_buf *buf, const char *mem_path, int mem_fd)
{
	uint64_t token;
	ssize_t got = pread(mem_fd, &token, sizeof(token), (off_t)buf->mapping.bytes);
	if (got != sizeof(token))
		return got < 0 ? -errno : -EPROTO;
	char *path;
	if (asprintf(&path, "%s.%016" PRIx64, mem_path, token) < 0)
		return -ENOMEM;
	int fd = relay_mapping_open(path, O_RDONLY, true);
	free(path);
	if (fd < 0)
		return fd;
	void *hold = mmap(NULL, RELAY_PAGE_BYTES, PROT_NONE, MAP_PRIVATE, fd, 0);
	int err = hold == MAP_FAILED ? -errno : 0;
	close(fd);
	if (err)
		return err;
	buf->hold = hold;
	/* The token is set only now, because the server ends the claims with this token when
	 * it takes memN for closed. */
	relay_buf_set_token(buf, token);
	return 0;
}

/* fd is a descriptor, or -errno. */
static struct rchan_buf *open_buf_fd(int fd, map_function *map)
{
	if (fd < 0) {
		errno = -fd;
		return NULL;
	}
	struct rchan_buf *buf = aligned_alloc(64, (sizeof(*buf) + 63) & ~(size_t)63);
	int err = buf ? init(buf, fd, map) : -ENOMEM;
	if (!err)
		return buf;
	if (!buf)
		close(fd);
	free(buf);
	errno = -err;
	return NULL;
}

struct rchan_buf *relay_buf_open(const char *mem_file)
{
	return open_buf_fd(relay_file_open(mem_file), relay_mapping_map);
}

struct rchan_buf *relay_buf_fdopen(int fd)
{
	return open_buf_fd(relay_descriptor_copy(fd), relay_mapping_map);
}

struct rchan_buf *relay_buf_view(int fd)
{
	return open_buf_fd(relay_descriptor_copy(fd), relay_mapping_map_view);
}

struct rchan_buf *relay_buf_glance(int fd)
{
	return open_buf_fd(fd, relay_mapping_map_glance);
}

void relay_buf_release(struct rchan_buf *buf)
{
	if (!buf)
		return;
	relay_buf_fini(buf);
	free(buf);
}

int relay_buf_fd(const struct rchan_buf *buf)
{
	return buf->mapping.file.fd;
}

void relay_buf_close_fd(struct rchan_buf *buf)
{
	relay_descriptor_close(&buf->mapping.file);
}

const char *relay_buf_damage(struct rchan_buf *buf)
{
	return relay_damage_text(&buf->damage);
}
