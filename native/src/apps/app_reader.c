/* SPDX-License-Identifier: MIT */
/*
 * One buffer's reader.
 *
 *     sleep until a sub-buffer is finished, and all its records are committed
 *                    (delivery=packet: until there is a record)
 *     take a piece   RELAY_APP_MMAP: out of the memory; overwritable memory is copied and checked first
 *                    RELAY_APP_READ: read(2)
 *     hand it on     write(2) or process_subbuf()
 *     consume it     (RELAY_APP_READ: read(2) has done it)
 *
 * until it is told to stop or the channel is removed. Then it takes the unfinished sub-buffer, too, up to where the
 * buffer stood at that time: others may go on writing.
 */
#define _GNU_SOURCE
#include "apps/app_reader.h"

#include "base/futex.h"
#include "buffer/consume.h"

#include <poll.h>
#include <sched.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* A producer can die between publishing and waking: look again at least so often. While somebody else is
 * consuming, nothing wakes us. */
enum { LOOK_AGAIN_MS = 1000, BUSY_MS = 1, DRAIN_MS = 1000 };

static bool is_told_to_stop(const struct app_reader *reader)
{
	/* Pairs with the release in stop(): `until` before it. */
	return __atomic_load_n(&reader->shared->stop, __ATOMIC_ACQUIRE);
}

void relay_app_lost(const struct relay_stats *stats, uint64_t *records, uint64_t *bytes)
{
	*records = stats->lost_full_records + stats->lost_too_large_records + stats->lost_overwritten_records +
	           stats->lost_torn_records;
	*bytes = stats->lost_full_bytes + stats->lost_too_large_bytes + stats->lost_overwritten_bytes +
	         stats->lost_torn_bytes;
}

/* --- handing on --- */

static int hand_on(struct app_reader *reader, const void *data, size_t length, size_t padding)
{
	struct app_shared *shared = reader->shared;
	int err = shared->process_subbuf ? shared->process_subbuf(shared->app, reader->buf->cpu, data, length, padding)
	                                 : relay_app_output_write(&reader->output, data, length);
	if (err)
		return err < 0 ? err : -EINVAL;
	relay_app_count(&reader->stats.bytes, reader->stats.bytes + length);
	relay_app_count(&reader->stats.pieces, reader->stats.pieces + 1);
	return 0;
}

/* --- taking: 1: a piece was handed on or, overwritten meanwhile, given up; 0: there is none; or an error --- */

/* Of the sub-buffer that a planned piece ends, if it does end one: the walk has gone on to the next. */
static size_t padding_behind(const struct rchan_buf *buf, const struct relay_span *span)
{
	if (relay_pos_offset(buf, buf->plan.to.position) != 0)
		return 0;
	uint64_t offset = (uint64_t)((const unsigned char *)span->data - buf->data) % buf->subbuf_size;
	return buf->subbuf_size - offset - span->length;
}

static int hand_on_planned(struct app_reader *reader, const struct relay_span *span)
{
	struct rchan_buf *buf = reader->buf;
	const void *data = span->data;
	size_t padding = padding_behind(buf, span);
	if (reader->room) {
		data = memcpy(reader->room, span->data, span->length);
		if (relay_consume_valid(buf)) {
			relay_consume_abort(buf);
			return 1; /* the next look counts it */
		}
	}
	int err = hand_on(reader, data, span->length, padding);
	if (err)
		relay_consume_abort(buf);
	else
		relay_consume_end(buf);
	return err ? err : 1;
}

/* The planned piece is the beginning of a finished sub-buffer whose rest is reserved and not committed. Of data behind
 * a record that was given up it is not true, and peek() finds out who will never commit. */
static bool is_held_back(struct rchan_buf *buf)
{
	if (relay_pos_offset(buf, buf->plan.to.position) == 0)
		return false;
	pthread_mutex_lock(&buf->walking);
	int more = relay_consume_peek(buf, &buf->plan.to);
	pthread_mutex_unlock(&buf->walking);
	return more == 0 || more == -EINPROGRESS;
}

static int take_from_memory(struct app_reader *reader, bool finished_only)
{
	struct rchan_buf *buf = reader->buf;
	struct relay_span span;
	size_t total;
	if (finished_only) {
		/* At most nothing: steps over sub-buffers that are finished and empty. */
		int err = relay_consume_begin(buf, 0, &span, 1, &total);
		if (err || !(relay_buf_state(buf) & RELAY_HAS_FINISHED))
			return err;
	}
	int n = relay_consume_begin(buf, SIZE_MAX, &span, 1, &total);
	if (n == 1 && finished_only && is_held_back(buf)) {
		relay_consume_abort(buf);
		return 0;
	}
	return n == 1 ? hand_on_planned(reader, &span) : n;
}

static int take_from_file(struct app_reader *reader)
{
	if (!reader->held) {
		ssize_t n = read(reader->file, reader->room, reader->room_bytes);
		if (n < 0)
			return errno == EAGAIN || errno == EINTR ? 0 : -errno;
		reader->held = (size_t)n;
	}
	if (!reader->held)
		return 0;
	int err = hand_on(reader, reader->room, reader->held, 0);
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

/* On the relay file. */
static int sleep_on_file(struct app_reader *reader)
{
	struct pollfd files[] = {{.fd = reader->file, .events = POLLIN},
	                         {.fd = reader->shared->stop_fd, .events = POLLIN}};
	return poll(files, 2, -1) < 0 && errno != EINTR ? -errno : 0;
}

/* On the memory: until the counter that arm() gave has changed. */
static int sleep_on_memory(struct app_reader *reader, uint32_t seq)
{
	int err = relay_buf_wait_any(&reader->buf, &seq, 1, &reader->shared->stop, 0, LOOK_AGAIN_MS);
	return err == -EINTR ? 0 : err;
}

/* Nothing was there: ask to be woken and, lest it came meanwhile, look again; then sleep. */
static int sleep_until_more(struct app_reader *reader, bool *armed, uint32_t *seq)
{
	struct rchan_buf *buf = reader->buf;
	/* A commit will wake us, which may be no switch. And poll(2) would call it readable, again and again. */
	bool held_back = relay_buf_state(buf) & RELAY_HAS_FINISHED;
	if (*armed) {
		*armed = false;
		return sleep_on_memory(reader, *seq);
	}
	if (reader->shared->way == RELAY_APP_READ && !held_back)
		return sleep_on_file(reader);
	/* Records that come one after the other: an armed buffer costs their writer a system call for each. */
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

/* Read statistics; note how far behind we are. */
static int look(struct app_reader *reader, struct relay_stats *stats)
{
	int err = relay_buf_stats(reader->buf, stats);
	uint64_t backlog = stats->produced - stats->consumed;
	if (!err && backlog > reader->stats.max_backlog)
		relay_app_count(&reader->stats.max_backlog, backlog);
	return err;
}

/* The channel was removed. Nobody writes any more, once those who were about to have been waited for. */
static int note_end(struct app_reader *reader)
{
	struct relay_stats stats;
	relay_buf_stop(reader->buf, RELAY_CLOSED, 1);
	int err = relay_buf_stats(reader->buf, &stats);
	reader->until = stats.bytes;
	return err;
}

/* Take all up to `until`. Reservations that are under way are short, or somebody's who sleeps: wait, but not for ever. */
static int drain(struct app_reader *reader)
{
	int64_t give_up = relay_now_ms() + DRAIN_MS;
	for (;;) {
		struct relay_stats stats;
		int err = look(reader, &stats);
		/* As a signed difference: a reset may have set it back. */
		if (err || ((int64_t)(stats.bytes - stats.unread_bytes - reader->until) >= 0 && !reader->held))
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

static int follow(struct app_reader *reader)
{
	struct relay_stats stats;
	bool armed = false;
	uint32_t seq = 0;
	for (;;) {
		if (is_told_to_stop(reader))
			return drain(reader);
		int err = look(reader, &stats);
		if (err)
			return err;
		if (stats.closed) {
			err = note_end(reader);
			return err ? err : drain(reader);
		}
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

/* Where its data is. The CPU may be offline or forbidden to us: then the reader runs anywhere. */
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
