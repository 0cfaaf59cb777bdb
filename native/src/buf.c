/* SPDX-License-Identifier: MIT */
/* One buffer as a whole: its layout, and taking it into this process. */
#define _GNU_SOURCE
#include "buf.h"

#include "begin.h"
#include "claims.h"
#include "holes_room.h"
#include "sleep.h"

#include <fcntl.h>
#include <inttypes.h>
#include <relayfs/ring_layout.h>
#include <relayfs/trace_store.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static uint32_t bits_for(uint64_t largest)
{
	return largest ? 64 - (uint32_t)__builtin_clzll(largest) : 0;
}

static uint64_t to_page(uint64_t bytes)
{
	return (bytes + RELAY_PAGE_BYTES - 1) & ~(uint64_t)(RELAY_PAGE_BYTES - 1);
}

bool relay_layout_of(uint64_t subbuf_size, uint64_t n_subbufs, struct relay_layout *layout)
{
	if (subbuf_size == 0 || subbuf_size > RELAY_SUBBUF_SIZE_MAX || n_subbufs == 0 ||
	    n_subbufs > RELAY_N_SUBBUFS_MAX || subbuf_size > RELAY_DATA_BYTES_MAX / n_subbufs)
		return false;
	layout->subbufs_at = to_page(subbuf_size * n_subbufs);
	layout->claims_at = to_page(layout->subbufs_at + 2 * n_subbufs * sizeof(struct relay_subbuf));
	layout->control_at = to_page(layout->claims_at + RELAY_N_CLAIMS * sizeof(struct relay_claim));
	layout->file_bytes = layout->control_at + RELAY_PAGE_BYTES;
	layout->offset_bits = bits_for(subbuf_size);
	layout->index_bits = bits_for(n_subbufs - 1);
	return true;
}

uint64_t relay_buf_file_bytes(uint64_t subbuf_size, uint64_t n_subbufs)
{
	struct relay_layout layout;
	return relay_layout_of(subbuf_size, n_subbufs, &layout) ? layout.file_bytes : 0;
}

bool relay_reserves_fit(uint64_t subbuf_size, uint64_t start, uint64_t end, uint64_t channel_start)
{
	return start + end + channel_start < subbuf_size;
}

bool relay_format_fits(uint32_t format, uint32_t timestamp, uint64_t start_reserve, uint32_t mode)
{
	return format == RELAY_STREAM || (format == RELAY_PACKETS && timestamp != RELAY_NO_TIMESTAMP &&
	                                  start_reserve == sizeof(struct relay_packet) && mode != RELAY_CALLBACK);
}

static int check_geometry(const struct relay_geometry *geometry, uint64_t file_bytes, struct relay_layout *layout)
{
	if (geometry->magic != RELAY_MAGIC)
		return geometry->magic == RELAY_RING_MAGIC ? -EMEDIUMTYPE : -EBADMSG;
	if (geometry->version != RELAY_LAYOUT_VERSION)
		return -EPROTO;
	if (!relay_layout_of(geometry->subbuf_size, geometry->n_subbufs, layout) || layout->file_bytes != file_bytes ||
	    geometry->file_bytes != file_bytes || geometry->n_claims != RELAY_N_CLAIMS ||
	    geometry->mode > RELAY_CALLBACK || geometry->buffers > RELAY_SINGLE || geometry->delivery > RELAY_PACKET ||
	    geometry->read > RELAY_READ_WAIT || geometry->reserve > RELAY_RESERVE_VISIBLE || geometry->n_buffers == 0 ||
	    geometry->timestamp > RELAY_TSC ||
	    !relay_reserves_fit(geometry->subbuf_size, geometry->start_reserve, geometry->end_reserve,
	                        geometry->channel_start_reserve) ||
	    !relay_format_fits(geometry->format, geometry->timestamp, geometry->start_reserve, geometry->mode) ||
	    geometry->cpu >= geometry->n_buffers || geometry->scheme < RELAY_RSEQ || geometry->scheme > RELAY_LOCKING)
		return -EBADMSG;
	return 0;
}

int relay_buf_init(struct rchan_buf *buf, int fd)
{
	*buf = (struct rchan_buf){0};
	int err = relay_shm_map(&buf->shm, fd);
	if (err) {
		close(fd);
		return err;
	}
	unsigned char *base = buf->shm.base;
	struct relay_control *control = (struct relay_control *)(base + buf->shm.bytes - RELAY_PAGE_BYTES);
	struct relay_geometry geometry = control->geometry; /* one copy: checked, then used */
	struct relay_layout layout;
	err = check_geometry(&geometry, buf->shm.bytes, &layout);
	if (err) {
		relay_shm_unmap(&buf->shm);
		return err;
	}
	buf->control = control;
	/* Not zeroed, because a head is written whole before it is read, and most of this memory is never used. */
	if (geometry.format == RELAY_PACKETS && !(buf->packets = malloc(RELAY_N_PACKETS * sizeof(*buf->packets)))) {
		relay_shm_unmap(&buf->shm);
		return -ENOMEM;
	}
	buf->data = base;
	buf->subbufs = (struct relay_subbuf *)(base + layout.subbufs_at);
	buf->claims = (struct relay_claim *)(base + layout.claims_at);
	buf->n_claims = geometry.n_claims;
	buf->subbuf_size = geometry.subbuf_size;
	buf->n_subbufs = geometry.n_subbufs;
	buf->offset_bits = layout.offset_bits;
	buf->index_bits = layout.index_bits;
	buf->offset_mask = (1ull << layout.offset_bits) - 1;
	buf->index_mask = (1ull << layout.index_bits) - 1;
	buf->lap = 1ull << (layout.offset_bits + layout.index_bits);
	buf->cpu = geometry.cpu;
	buf->mode = geometry.mode;
	buf->scheme = geometry.scheme;
	buf->delivery = geometry.delivery;
	buf->buffers = geometry.buffers;
	buf->read = geometry.read;
	buf->format = geometry.format;
	buf->flush_interval_ms = geometry.flush_interval_ms;
	buf->reserve = geometry.reserve;
	buf->timestamp = geometry.timestamp;
	buf->start_reserve = geometry.start_reserve;
	buf->pid = geometry.pid;
	buf->channel_start_reserve = geometry.channel_start_reserve;
	buf->subbuf_end = geometry.subbuf_size - geometry.end_reserve;
	buf->largest = buf->subbuf_end - geometry.start_reserve;
	buf->begins = buf->mode == RELAY_CALLBACK || buf->timestamp || relay_reserved_at(buf, 0);
	buf->begin = relay_begin_of_mode(buf);
	buf->n_buffers = geometry.n_buffers;
	relay_claims_forget_kept(buf);
	relay_fence_register();
	return 0;
}

void relay_buf_fini(struct rchan_buf *buf)
{
	relay_consume_abort(buf);
	relay_shm_unmap(&buf->shm);
	free(buf->relay_file);
	relay_holes_forget(&buf->holes);
	relay_holes_forget(&buf->holes_ahead);
	free(buf->packets);
	if (buf->hold)
		munmap(buf->hold, RELAY_PAGE_BYTES);
}

static int dup_cloexec(int fd)
{
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	return copy < 0 ? -errno : copy;
}

int relay_buf_attach(struct rchan_buf *buf, const char *mem_path, bool in_mount)
{
	int sign = relay_shm_open(mem_path, O_RDWR, in_mount);
	if (sign < 0)
		return sign;
	int fd = dup_cloexec(sign);
	int err = fd < 0 ? fd : relay_buf_init(buf, fd);
	if (err == -ENODEV) {
		fd = relay_shm_open_backing(mem_path);
		err = fd < 0 ? fd : relay_buf_init(buf, fd);
	}
	if (!err && in_mount) {
		err = relay_buf_hold(buf, mem_path, sign);
		if (err)
			relay_buf_fini(buf);
	}
	close(sign);
	if (err)
		return err;
	/* A traced program's buffer may get its memory when no file can be opened any more. */
	if (in_mount || !relay_is_unallocated(buf))
		relay_buf_close_fd(buf);
	buf->patient = true;
	return 0;
}

int relay_buf_hold(struct rchan_buf *buf, const char *mem_path, int mem_fd)
{
	uint64_t token;
	ssize_t got = pread(mem_fd, &token, sizeof(token), (off_t)buf->shm.bytes);
	if (got != sizeof(token))
		return got < 0 ? -errno : -EPROTO;
	char *path;
	if (asprintf(&path, "%s.%016" PRIx64, mem_path, token) < 0)
		return -ENOMEM;
	int fd = relay_shm_open(path, O_RDONLY, true);
	free(path);
	if (fd < 0)
		return fd;
	void *hold = mmap(NULL, RELAY_PAGE_BYTES, PROT_NONE, MAP_PRIVATE, fd, 0);
	int err = hold == MAP_FAILED ? -errno : 0;
	close(fd);
	if (err)
		return err;
	buf->hold = hold;
	/* Not before: when the server takes memN for closed, it buries what stands under its token. */
	relay_buf_set_token(buf, token);
	return 0;
}

/* fd: or -errno. */
static struct rchan_buf *take(int fd)
{
	if (fd < 0) {
		errno = -fd;
		return NULL;
	}
	struct rchan_buf *buf = aligned_alloc(64, (sizeof(*buf) + 63) & ~(size_t)63);
	int err = buf ? relay_buf_init(buf, fd) : -ENOMEM;
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
	return take(relay_file_open(mem_file));
}

struct rchan_buf *relay_buf_fdopen(int fd)
{
	return take(dup_cloexec(fd));
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
	return buf->shm.file.fd;
}

void relay_buf_close_fd(struct rchan_buf *buf)
{
	relay_descriptor_close(&buf->shm.file);
}

int relay_head(const struct rchan_buf *buf, uint64_t *first, uint64_t *second)
{
	if (!relay_pair_read(&buf->control->head, first, second) || !relay_pos_valid(buf, *first))
		return -EBADMSG;
	return 0;
}

int relay_head_checked(struct rchan_buf *buf, uint64_t *first, uint64_t *second)
{
	if (!relay_pair_read(&buf->control->head, first, second))
		return relay_damage_say(&buf->damage, "relay_control.head does not come to rest");
	if (relay_pos_valid(buf, *first))
		return 0;
	return relay_damage_note(&buf->damage, "relay_control.head.first", 0, *first,
	                         "not a position in sub-buffers of so many bytes:", buf->subbuf_size);
}

const char *relay_buf_damage(struct rchan_buf *buf)
{
	return relay_damage_text(&buf->damage);
}

int relay_buf_full(struct rchan_buf *buf)
{
	/* Relaxed: in a callback nobody moves head, and readers only make room. */
	uint64_t head = __atomic_load_n(&buf->control->head.first, __ATOMIC_RELAXED);
	uint64_t consumed = __atomic_load_n(&buf->control->consumed, __ATOMIC_ACQUIRE);
	return relay_pos_number(buf, head) - relay_pos_number(buf, consumed) >= buf->n_subbufs;
}

uint64_t relay_lost(const struct rchan_buf *buf)
{
	const struct relay_control *control = buf->control;
	const struct relay_pair *const pairs[] = {&control->lost_full, &control->lost_too_large,
	                                          &control->lost_disabled};
	uint64_t sum = 0, records, bytes;
	for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
		relay_pair_or_zero(pairs[i], &records, &bytes);
		sum += records;
	}
	return sum;
}
