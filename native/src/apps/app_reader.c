/* SPDX-License-Identifier: MIT */
/*
 * A relay_app's reader of one buffer.
 *
 *     sleep until a sub-buffer is finished, and all its records are committed
 *                    (delivery=packet: until there is a record)
 *     read a piece   RELAY_APP_MMAP: in the memory; overwritable memory is copied and checked first
 *                    RELAY_APP_READ: read(2)
 *                    For a file, many pieces are copied and written as one.
 *     deliver it     write(2) or process_subbuf()
 *     consume it     (RELAY_APP_READ: read(2) has done it)
 *
 * until it is told to stop or the channel is removed. Then it also reads the unfinished sub-buffer, up to the position at
 * that time, because other programs may continue to write.
 */
#define _GNU_SOURCE
#include "apps/app_reader.h"

#include "base/futex.h"
#include "buffer/consume.h"
#include "buffer/timed.h"

#include <poll.h>
#include <sched.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The longest sleep, because a producer can die between publishing and waking, and because the end of another reader's
 * consuming wakes nobody. */
enum { LOOK_AGAIN_MS = 1000, BUSY_MS = 1, DRAIN_MS = 1000 };

static bool is_told_to_stop(const struct app_reader *reader)
{
	/* Pairs with the release in join_readers() in apps/relay_app.c: `until` before it. */
	return __atomic_load_n(&reader->shared->stop, __ATOMIC_ACQUIRE);
}

void relay_app_lost(const struct relay_stats *stats, uint64_t *records, uint64_t *bytes)
{
	*records = stats->lost_full_records + stats->lost_too_large_records + stats->lost_overwritten_records +
	           stats->lost_torn_records;
	*bytes = stats->lost_full_bytes + stats->lost_too_large_bytes + stats->lost_overwritten_bytes +
	         stats->lost_torn_bytes;
}

/* --- delivering --- */

static uint64_t blocks(uint64_t bytes)
{
	return bytes / APP_BLOCK_BYTES + (bytes % APP_BLOCK_BYTES != 0);
}

/* Count the blocks that a piece takes in addition. 0; -EDQUOT: all readers together would take more than they may. */
static int take_room(struct app_reader *reader, size_t length)
{
	struct app_shared *shared = reader->shared;
	uint64_t end = (uint64_t)reader->output.bytes;
	uint64_t n = blocks(end + length) - blocks(end);
	/* Relaxed: no other data depends on it. */
	if (__atomic_add_fetch(&shared->n_blocks, n, __ATOMIC_RELAXED) <= shared->max_blocks)
		return 0;
	__atomic_sub_fetch(&shared->n_blocks, n, __ATOMIC_RELAXED);
	return -EDQUOT;
}

static int write_piece(struct app_reader *reader, const void *data, size_t length)
{
	struct relay_stats stats;
	int err = take_room(reader, length);
	if (!err && reader->buf->is_timed && reader->shared->way == RELAY_APP_MMAP) {
		err = relay_buf_stats(reader->buf, &stats);
		if (!err)
			relay_app_output_begin(&reader->output, &stats);
	}
	return err ? err : relay_app_output_write(&reader->output, data, length, reader->is_urgent);
}

static int deliver(struct app_reader *reader, const void *data, size_t length, size_t padding)
{
	struct app_shared *shared = reader->shared;
	int err = shared->process_subbuf ? shared->process_subbuf(shared->app, reader->buf->cpu, data, length, padding)
	                                 : write_piece(reader, data, length);
	if (err)
		return err < 0 ? err : -EINVAL;
	relay_app_count(&reader->stats.bytes, reader->stats.bytes + length);
	relay_app_count(&reader->stats.pieces, reader->stats.pieces + 1);
	return 0;
}

/* --- reading: 1: a piece was delivered or, if overwritten meanwhile, dropped; 0: there is none; or an error --- */

/* Padding of the sub-buffer that a planned piece ends, if it does end one: the plan has reached the next. */
static size_t padding_behind(const struct rchan_buf *buf, const struct relay_span *span)
{
	if (relay_pos_offset(buf, buf->plan.to.position) != 0)
		return 0;
	uint64_t offset = (uint64_t)((const unsigned char *)span->data - buf->data) % buf->subbuf_size;
	return buf->subbuf_size - offset - span->length;
}

static int deliver_planned(struct app_reader *reader, const struct relay_span *span)
{
	struct rchan_buf *buf = reader->buf;
	const void *data = span->data;
	size_t padding = padding_behind(buf, span);
	if (reader->room.bytes && buf->mode != RELAY_NO_OVERWRITE) {
		data = memcpy(reader->room.bytes, span->data, span->length);
		if (relay_consume_valid(buf)) {
			relay_consume_abort(buf);
			return 1; /* the next call counts it */
		}
	}
	int err = deliver(reader, data, span->length, padding);
	if (err)
		relay_consume_abort(buf);
	else
		relay_consume_end(buf);
	return err ? err : 1;
}

/* True if the planned piece is the beginning of a finished sub-buffer and the next record is reserved and not
 * committed. False if that record is torn: relay_consume_peek() finds out that its owner is dead. */
static bool is_held_back(struct rchan_buf *buf)
{
	if (relay_pos_offset(buf, buf->plan.to.position) == 0)
		return false;
	pthread_mutex_lock(&buf->walking);
	int more = relay_consume_peek(buf, &buf->plan.to);
	pthread_mutex_unlock(&buf->walking);
	return more == 0 || more == -EINPROGRESS;
}

/* Take as much as has room, for a file. As the functions above; 0 also if it has to be taken piece by piece. */
static int take_together(struct app_reader *reader, bool finished_only)
{
	struct rchan_buf *buf = reader->buf;
	off_t at = reader->output.bytes;
	if (!reader->room.spans || (finished_only && !(relay_buf_state(buf) & RELAY_HAS_FINISHED)))
		return 0;
	ssize_t n = relay_app_room_take(&reader->room, buf, at, finished_only);
	if (n <= 0)
		return (int)n;
	int err = deliver(reader, relay_app_room_at(&reader->room, at), (size_t)n, 0);
	if (err)
		relay_consume_abort(buf);
	else
		relay_consume_end(buf);
	/* Less than all of it may have room. */
	return err == -EDQUOT ? 0 : err ? err : 1;
}

static int take_from_memory(struct app_reader *reader, bool finished_only)
{
	struct rchan_buf *buf = reader->buf;
	struct relay_span span;
	size_t total;
	int together = take_together(reader, finished_only);
	if (together)
		return together;
	if (finished_only) {
		/* With a limit of 0 bytes, this skips sub-buffers that are finished and empty. */
		int err = relay_consume_begin(buf, 0, &span, 1, &total);
		if (err || !(relay_buf_state(buf) & RELAY_HAS_FINISHED))
			return err;
	}
	int n = relay_consume_piece(buf, &span, NULL);
	if (n == 1 && finished_only && is_held_back(buf)) {
		relay_consume_abort(buf);
		return 0;
	}
	return n == 1 ? deliver_planned(reader, &span) : n;
}

static int take_from_file(struct app_reader *reader)
{
	if (!reader->held) {
		ssize_t n = read(reader->file, reader->room.bytes, APP_READ_BYTES);
		if (n < 0)
			return errno == EAGAIN || errno == EINTR ? 0 : -errno;
		reader->held = (size_t)n;
	}
	if (!reader->held)
		return 0;
	int err = deliver(reader, reader->room.bytes, reader->held, 0);
	if (err)
		return err;
	reader->held = 0;
	return 1;
}

static int take(struct app_reader *reader, bool finished_only)
{
	if (reader->shared->way == RELAY_APP_READ)
		return take_from_file(reader);
	return take_from_memory(reader, finished_only && reader->buf->geometry.delivery == RELAY_BULK);
}

/* --- sleeping: 0 or an error --- */

static void nap(void)
{
	nanosleep(&(struct timespec){.tv_nsec = BUSY_MS * 1000000l}, NULL);
}

/* Sleep on the relay file. */
static int sleep_on_file(struct app_reader *reader)
{
	struct pollfd files[] = {{.fd = reader->file, .events = POLLIN},
	                         {.fd = reader->shared->stop_fd, .events = POLLIN}};
	return poll(files, 2, -1) < 0 && errno != EINTR ? -errno : 0;
}

/* Sleep until the wake-up counter differs from the value that relay_buf_arm() stored. */
static int sleep_on_memory(struct app_reader *reader, uint32_t seq)
{
	int err = relay_buf_wait_any(&reader->buf, &seq, 1, &reader->shared->stop, 0, LOOK_AGAIN_MS);
	return err == -EINTR ? 0 : err;
}

/* Called if there was no data. The first call requests a wake-up, so that the caller checks for data again; the second
 * call sleeps. */
static int sleep_until_more(struct app_reader *reader, bool *armed, uint32_t *seq)
{
	struct rchan_buf *buf = reader->buf;
	/* Wait for a commit, which may not be a switch, and for which poll(2) would return at once. */
	bool held_back = relay_buf_state(buf) & RELAY_HAS_FINISHED;
	if (*armed) {
		*armed = false;
		return sleep_on_memory(reader, *seq);
	}
	if (reader->shared->way == RELAY_APP_READ && !held_back)
		return sleep_on_file(reader);
	/* Nap while records arrive in quick succession, because an armed buffer costs their writer a system call for each. */
	if (buf->geometry.delivery == RELAY_PACKET && reader->has_taken) {
		reader->has_taken = false;
		nap();
		return 0;
	}
	*armed = true;
	return relay_buf_arm(buf, held_back || buf->geometry.delivery == RELAY_PACKET ? RELAY_ARMED : RELAY_ARM_SWITCH,
	                     seq);
}

/* --- the thread --- */

/* Read statistics; update max_backlog. */
static int look(struct app_reader *reader, struct relay_stats *stats)
{
	int err = relay_buf_stats(reader->buf, stats);
	uint64_t backlog = stats->produced - stats->consumed;
	if (!err && backlog > reader->stats.max_backlog)
		relay_app_count(&reader->stats.max_backlog, backlog);
	reader->is_urgent = 2 * backlog > reader->buf->n_subbufs;
	return err;
}

/* Read all data up to `until`. Wait for open reservations, but not for ever, because their owners may sleep. */
static int drain(struct app_reader *reader, uint64_t until)
{
	int64_t give_up = relay_now_ms() + DRAIN_MS;
	for (;;) {
		struct relay_stats stats;
		int err = look(reader, &stats);
		/* Compare by a signed difference, because a reset may have set the position back. */
		if (err || ((int64_t)(stats.bytes - stats.unread_bytes - until) >= 0 && !reader->held))
			return err;
		int got = take(reader, false);
		if (got < 0 && got != -EBUSY)
			return got;
		if (got > 0)
			give_up = relay_now_ms() + DRAIN_MS;
		else if (relay_now_ms() >= give_up)
			return -EBUSY;
		else
			nap();
	}
}

/* Called when the channel was removed. Wait until no write is under way, and read all data. */
static int drain_removed(struct app_reader *reader)
{
	struct relay_stats stats;
	relay_buf_stop(reader->buf, RELAY_CLOSED, 1);
	int err = relay_buf_stats(reader->buf, &stats);
	return err ? err : drain(reader, stats.bytes);
}

static int follow(struct app_reader *reader)
{
	struct relay_stats stats;
	bool armed = false;
	uint32_t seq = 0;
	for (;;) {
		if (is_told_to_stop(reader))
			return drain(reader, reader->until);
		int err = look(reader, &stats);
		if (err)
			return err;
		if (stats.closed)
			return drain_removed(reader);
		int got = take(reader, true);
		if (got > 0) {
			armed = false;
			reader->has_taken = true;
		} else if (got == -EBUSY)
			nap();
		else
			err = got ? got : sleep_until_more(reader, &armed, &seq);
		if (err)
			return err;
	}
}

/* Move the thread to its buffer's CPU. If the CPU is offline or not allowed, the reader runs anywhere. */
static void go_to_cpu(uint32_t cpu)
{
	cpu_set_t *set = CPU_ALLOC(cpu + 1);
	if (!set)
		return;
	CPU_ZERO_S(CPU_ALLOC_SIZE(cpu + 1), set);
	CPU_SET_S(cpu, CPU_ALLOC_SIZE(cpu + 1), set);
	pthread_setaffinity_np(pthread_self(), CPU_ALLOC_SIZE(cpu + 1), set);
	CPU_FREE(set);
}

void *relay_app_reader_run(void *argument)
{
	struct app_reader *reader = argument;
	struct app_shared *shared = reader->shared;
	if (reader->on_its_cpu)
		go_to_cpu(reader->buf->cpu);
	reader->result = follow(reader);
	bool is_last = !__atomic_sub_fetch(&shared->n_running, 1, __ATOMIC_ACQ_REL);
	if (is_last || reader->result)
		while (write(shared->over_fd, &(uint64_t){1}, sizeof(uint64_t)) < 0 && errno == EINTR)
			;
	return NULL;
}
