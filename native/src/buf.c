/* SPDX-License-Identifier: MIT */
/* One buffer as a whole: its layout, taking it into this process, and what is known of it. */
#define _GNU_SOURCE
#include "buf.h"

#include "begin.h"
#include "claims.h"
#include "consume.h"
#include "sleep.h"

#include <fcntl.h>
#include <relayfs/trace_store.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

enum { RESET_TRIES = 10, RESET_YIELDS = 10000, MOVE_TRIES = 1000 };

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
		return -EBADMSG;
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
	*buf = (struct rchan_buf){.sign_of_life = -1};
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
	if (geometry.format == RELAY_PACKETS && !(buf->packets = calloc(RELAY_N_PACKETS, sizeof(*buf->packets)))) {
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
	free(buf->holes.at);
	free(buf->packets);
	if (buf->sign_of_life >= 0)
		close(buf->sign_of_life);
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
	if (err) {
		close(sign);
		return err;
	}
	relay_buf_sign(buf, sign);
	buf->patient = true;
	return 0;
}

void relay_buf_sign(struct rchan_buf *buf, int mem_fd)
{
	uint64_t token = 0;
	if (pread(mem_fd, &token, sizeof(token), (off_t)buf->shm.bytes) == sizeof(token))
		relay_buf_set_token(buf, token);
	buf->sign_of_life = mem_fd;
}

static struct rchan_buf *take(int fd)
{
	if (fd < 0)
		return NULL;
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
	return take(open(mem_file, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
}

struct rchan_buf *relay_buf_fdopen(int fd)
{
	return take(fcntl(fd, F_DUPFD_CLOEXEC, 3));
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
	return buf->shm.fd;
}

int relay_head(const struct rchan_buf *buf, uint64_t *first, uint64_t *second)
{
	if (!relay_pair_read(&buf->control->head, first, second) || !relay_pos_valid(buf, *first))
		return -EBADMSG;
	return 0;
}

/* Between these two nobody reset the buffer, or it is to be done again. */
static uint32_t resets_begin(const struct rchan_buf *buf)
{
	/* Pairs with manage.c: what the last reset left is seen after. */
	return __atomic_load_n(&buf->control->resets, __ATOMIC_ACQUIRE);
}

static bool resets_met(const struct rchan_buf *buf, uint32_t begin)
{
	/* Pairs with manage.c: if anything was seen of a reset under way, so is its number. */
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return begin & 1 || __atomic_load_n(&buf->control->resets, __ATOMIC_RELAXED) != begin;
}

/* What is read of readers and then of writers, who are a lap farther by then, looks like damage. */
static uint32_t readers_begin(const struct rchan_buf *buf)
{
	/* Relaxed: relay_consumer_read() loads it again, for what belongs to it. */
	return __atomic_load_n(&buf->control->current, __ATOMIC_RELAXED);
}

static bool readers_met(const struct rchan_buf *buf, uint32_t begin)
{
	/* Pairs with the release in publish() of consume.c: who saw writers go on sees the readers who let them. */
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return __atomic_load_n(&buf->control->current, __ATOMIC_RELAXED) != begin;
}

static int read_state(struct rchan_buf *buf)
{
	struct relay_consumer state;
	uint64_t head, second;
	uint32_t flags = __atomic_load_n(&buf->control->flags, __ATOMIC_ACQUIRE);
	if (__atomic_load_n(&buf->control->geometry.magic, __ATOMIC_RELAXED) != RELAY_MAGIC ||
	    relay_head(buf, &head, &second) || !relay_consumer_read(buf, &state))
		return RELAY_IS_DAMAGED;
	int bits = flags & RELAY_CLOSED ? RELAY_IS_CLOSED : 0;
	if ((int64_t)(relay_produced(buf, head) - relay_pos_number(buf, state.position)) > 0)
		bits |= RELAY_HAS_FINISHED;
	int data = relay_consume_peek(buf, &state);
	return data < 0 ? RELAY_IS_DAMAGED : data ? bits | RELAY_HAS_DATA : bits;
}

int relay_buf_state(struct rchan_buf *buf)
{
	for (int resets = 0, moves = 0; resets < RESET_TRIES;) {
		uint32_t begin = resets_begin(buf), readers = readers_begin(buf);
		int state = read_state(buf);
		if (resets_met(buf, begin))
			resets++;
		else if (!(state & RELAY_IS_DAMAGED) || !readers_met(buf, readers) || moves++ == MOVE_TRIES)
			return state;
	}
	/* Under way: nothing is there to read, and its end wakes who waits. */
	return __atomic_load_n(&buf->control->flags, __ATOMIC_ACQUIRE) & RELAY_CLOSED ? RELAY_IS_CLOSED : 0;
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

/* Where head is and what has been written up to there, at one moment. */
static int read_produced(struct rchan_buf *buf, struct relay_facts *facts)
{
	uint64_t pos, second, again;
	for (int i = 0; i < RELAY_PAIR_TRIES; i++) {
		if (relay_head(buf, &pos, &second))
			return -EBADMSG;
		relay_claims_help(buf, pos, second);
		uint64_t start = __atomic_load_n(&relay_pos_ledger(buf, pos)->start_bytes, __ATOMIC_ACQUIRE);
		again = __atomic_load_n(&buf->control->head.first, __ATOMIC_RELAXED) & RELAY_POSITION_MASK;
		if (relay_pos_number(buf, again) != relay_pos_number(buf, pos))
			continue; /* the ledger may be of a later lap */
		facts->produced = relay_produced(buf, pos);
		facts->offset = relay_pos_offset(buf, pos);
		facts->records = second & RELAY_RECORDS_MASK;
		facts->bytes = start + facts->offset;
		facts->suspended = !!(relay_asked(buf, relay_pos_number(buf, pos)) & RELAY_ASKED_SUSPENDED);
		facts->padding = relay_pos_number(buf, pos) * buf->subbuf_size + facts->offset - facts->bytes;
		return 0;
	}
	return -EBADMSG;
}

static int read_facts(struct rchan_buf *buf, struct relay_facts *facts)
{
	const struct relay_control *control = buf->control;
	struct relay_consumer state;
	struct relay_geometry geometry = control->geometry;
	uint32_t flags = __atomic_load_n(&control->flags, __ATOMIC_ACQUIRE);
	*facts = (struct relay_facts){.subbuf_size = buf->subbuf_size,
	                              .n_subbufs = buf->n_subbufs,
	                              .file_bytes = buf->shm.bytes,
	                              .cpu = buf->cpu,
	                              .n_buffers = buf->n_buffers,
	                              .mode = buf->mode,
	                              .scheme = buf->scheme,
	                              .buffers = geometry.buffers,
	                              .delivery = buf->delivery,
	                              .read = geometry.read,
	                              .reserve = buf->reserve,
	                              .timestamp = buf->timestamp,
	                              .start_reserve = buf->start_reserve,
	                              .end_reserve = (uint32_t)(buf->subbuf_size - buf->subbuf_end),
	                              .channel_start_reserve = buf->channel_start_reserve,
	                              .format = geometry.format,
	                              .pid = geometry.pid,
	                              .flush_interval_ms = geometry.flush_interval_ms,
	                              .closed = !!(flags & RELAY_CLOSED),
	                              .disabled = !!(flags & RELAY_DISABLED)};
	/* The consumer first: it can only be behind what is read of the producers after it. */
	if (geometry.magic != RELAY_MAGIC || !relay_consumer_read(buf, &state))
		return -EBADMSG;
	/* As readers left it: in overwrite mode it moves on with the next read only, losses are known at once. */
	facts->consumed = relay_pos_number(buf, state.position);
	if (relay_consumer_catch_up(buf, &state) || read_produced(buf, facts))
		return -EBADMSG;
	facts->lost_overwritten_records = state.overwritten_records;
	facts->lost_overwritten_bytes = state.overwritten_bytes;
	facts->lost_torn_records = state.torn_records;
	facts->lost_torn_bytes = state.torn_bytes;
	facts->discarded_records = state.discarded_records;
	facts->discarded_bytes = state.discarded_bytes;
	facts->read_records = state.records - state.overwritten_records - state.torn_records - state.discarded_records;
	facts->read_bytes = state.bytes - state.overwritten_bytes - state.torn_bytes - state.discarded_bytes;
	facts->unread_bytes = facts->bytes - state.bytes;
	facts->unread_holes = relay_consume_holes(buf, &state);
	facts->reads = state.reads;
	facts->wakeups = __atomic_load_n(&control->wake_seq, __ATOMIC_RELAXED);
	facts->switch_time_ns = __atomic_load_n(&control->switch_time_ns, __ATOMIC_RELAXED);
	relay_pair_or_zero(&control->lost_full, &facts->lost_full_records, &facts->lost_full_bytes);
	relay_pair_or_zero(&control->lost_too_large, &facts->lost_too_large_records, &facts->lost_too_large_bytes);
	relay_pair_or_zero(&control->lost_disabled, &facts->lost_disabled_records, &facts->lost_disabled_bytes);
	return 0;
}

int relay_buf_facts(struct rchan_buf *buf, struct relay_facts *facts)
{
	for (int i = 0;; i++) {
		uint32_t begin = resets_begin(buf), readers = readers_begin(buf);
		int err = read_facts(buf, facts);
		if ((!resets_met(buf, begin) && !(err && readers_met(buf, readers))) || i == RESET_YIELDS)
			return err;
		sched_yield();
	}
}

void relay_buf_moved(const struct rchan_buf *buf, uint64_t *count, uint64_t *time_ns)
{
	relay_pair_or_zero(&buf->control->moved, count, time_ns);
}

void relay_buf_keep_moved(struct rchan_buf *buf, uint64_t count, uint64_t time_ns)
{
	relay_pair_store(&buf->control->moved, count, time_ns);
}
