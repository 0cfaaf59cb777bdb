/* SPDX-License-Identifier: MIT */
/* The zero-copy reader of one relay file: relay_consume_begin() and _end() with waiting. */
#define _GNU_SOURCE
#include "base/futex.h"
#include "base/pace.h"
#include "buffer/open.h"
#include "buffer/timed.h"
#include "store/place.h"
#include "store/remote_file.h"
#include "store/remote_reader.h"

#include <relayfs/reader.h>
#include <stdlib.h>
#include <time.h>

/* The longest sleep, because a producer can die between publishing and waking, and because the end of another reader's
 * next() .. done() wakes nobody. */
enum { LOOK_AGAIN_MS = 1000, BUSY_MS = 1 };

struct relay_reader {
	struct rchan_buf buf;
	struct relay_remote_reader *remote; /* for read(2) on the relay file; NULL: the memory is mapped */
	uint64_t time;                      /* of the last piece */
	struct relay_pace pace;
	struct relay_look look;
};

static int open_buffer(struct relay_reader *reader, const char *relay_file)
{
	struct relay_place place;
	int err = relay_place_file(&place, relay_file);
	if (err)
		return err;
	char *mem = relay_place_mem(&place, place.cpu);
	err = mem ? relay_buf_attach(&reader->buf, mem, !place.in_store) : -ENOMEM;
	free(mem);
	if (err == -ENODEV) {
		err = relay_remote_check_type(&place, "relay");
		if (!err)
			err = relay_remote_reader_open(&reader->remote, relay_file);
	}
	relay_place_free(&place);
	return err;
}

struct relay_reader *relay_reader_open(const char *relay_file)
{
	struct relay_reader *reader = calloc(1, sizeof(*reader));
	if (!reader)
		return NULL;
	int err = open_buffer(reader, relay_file);
	if (!err)
		return reader;
	free(reader);
	errno = -err;
	return NULL;
}

void relay_reader_close(struct relay_reader *reader)
{
	if (!reader)
		return;
	if (reader->remote)
		relay_remote_reader_close(reader->remote);
	else
		relay_buf_fini(&reader->buf);
	free(reader);
}

int relay_reader_finished(struct relay_reader *reader)
{
	if (reader->remote)
		return relay_remote_reader_finished(reader->remote);
	int state = relay_buf_state(&reader->buf);
	return state & RELAY_IS_DAMAGED || (state & RELAY_IS_CLOSED && !(state & (RELAY_HAS_DATA | RELAY_LOOK_AGAIN)));
}

/* Begin to consume. 1: there is a piece; 0: there is none; or an error. */
static int try_next(struct relay_reader *reader, const void **data, size_t *length)
{
	struct relay_span span;
	if (reader->remote)
		return relay_remote_reader_take(reader->remote, data, length);
	const struct relay_plan *last = &reader->buf.plan;
	/* Otherwise there are more data than the last piece. */
	if (last->to.position == last->head)
		relay_before_look(&reader->look, last->to.bytes);
	int n = relay_consume_piece(&reader->buf, &span, &reader->time);
	if (n == 1) {
		*data = span.data;
		*length = span.length;
	}
	return n;
}

/* Sleep until something may have changed, at most `ms`. 0 or -EINTR. */
static int rest(struct relay_reader *reader, int busy, int64_t ms)
{
	uint32_t seq;
	struct rchan_buf *buf = &reader->buf;
	if (reader->remote)
		return relay_remote_reader_wait(reader->remote, (int)(ms < LOOK_AGAIN_MS ? ms : LOOK_AGAIN_MS));
	if (busy)
		return nanosleep(&(struct timespec){.tv_nsec = BUSY_MS * 1000000l}, NULL) ? -EINTR : 0;
	/* Relaxed: a position that is out of date only changes how the time passes. */
	uint64_t consumed = relay_pos_most_bytes(buf, __atomic_load_n(&buf->control->consumed, __ATOMIC_RELAXED));
	int passed = relay_pace(&reader->pace, consumed, buf->n_subbufs * buf->subbuf_size);
	if (passed)
		return passed < 0 ? passed : 0;
	relay_buf_arm(buf, RELAY_ARM_RECORD, &seq);
	if (relay_buf_state(buf) & (RELAY_HAS_DATA | RELAY_IS_CLOSED | RELAY_IS_DAMAGED | RELAY_LOOK_AGAIN))
		return 0;
	return relay_buf_wait_any(&buf, &seq, 1, NULL, 0, (int)(ms < LOOK_AGAIN_MS ? ms : LOOK_AGAIN_MS));
}

int relay_reader_next(struct relay_reader *reader, const void **data, size_t *length, int timeout_ms)
{
	if (reader->remote ? relay_remote_reader_holds(reader->remote) : reader->buf.plan.active)
		return -EALREADY;
	int64_t until = timeout_ms < 0 ? INT64_MAX : relay_now_ms() + timeout_ms;
	for (;;) {
		int result = try_next(reader, data, length);
		if (result == 1 || (result < 0 && result != -EBUSY))
			return result;
		int64_t left = timeout_ms < 0 ? LOOK_AGAIN_MS : until - relay_now_ms();
		if (left <= 0 || (!result && relay_reader_finished(reader)))
			return result;
		int interrupted = rest(reader, result == -EBUSY, left);
		if (interrupted)
			return interrupted;
	}
}

uint64_t relay_reader_time(const struct relay_reader *reader)
{
	return reader->time;
}

int relay_reader_abort(struct relay_reader *reader)
{
	if (reader->remote)
		return relay_remote_reader_holds(reader->remote) ? -EOPNOTSUPP : -EINVAL;
	if (!reader->buf.plan.active)
		return -EINVAL;
	relay_consume_abort(&reader->buf);
	return 0;
}

int relay_reader_done(struct relay_reader *reader)
{
	if (reader->remote)
		return relay_remote_reader_done(reader->remote);
	if (!reader->buf.plan.active)
		return -EINVAL;
	int err = relay_consume_valid(&reader->buf);
	if (err)
		relay_consume_abort(&reader->buf);
	else
		relay_consume_end(&reader->buf);
	return err;
}
