/* SPDX-License-Identifier: MIT */
/*
 * What is done to one buffer from outside its writers: flush, stop, reset, write on behalf of another CPU.
 *
 * In scheme rseq all of it happens on the buffer's CPU: being there means that every section another thread
 * had open has ended or will restart. In scheme lockless a change of head by compare-and-swap does the same.
 */
#define _GNU_SOURCE
#include "manage.h"

#include "claims.h"
#include "consume.h"
#include "oncpu.h"
#include "write.h"

#include <time.h>

enum { RESET_WAIT_MS = 1000 };

/* Call step(buf, arg) on the buffer's CPU: again while it says RELAY_WRONG_CPU. */
static int on_cpu(struct rchan_buf *buf, int (*step)(struct rchan_buf *, const void *), const void *arg)
{
	struct relay_visit visit;
	visit.active = false;
	int err = step(buf, arg);
	if (err == RELAY_WRONG_CPU) {
		err = relay_cpu_visit(buf->cpu, &visit);
		/* Hot-unplug or another thread may move us again: not for ever. */
		for (int tries = 0; !err && (err = step(buf, arg)) == RELAY_WRONG_CPU; tries++)
			if (tries > 100)
				err = -EPERM;
		relay_cpu_leave(&visit);
	}
	return err == -ENOTSUP ? -EPERM : err;
}

struct record {
	const void *data;
	size_t length;
};

static int write_step(struct rchan_buf *buf, const void *arg)
{
	const struct record *record = arg;
	if (buf->scheme == RELAY_SCHEME_RSEQ)
		return relay_write_rseq_slow(buf, record->data, record->length);
	return relay_write_claimed(buf, record->data, record->length);
}

int relay_buf_write(struct rchan_buf *buf, const void *data, size_t length)
{
	int err = on_cpu(buf, write_step, &(struct record){data, length});
	/* Truncated, and kept mappable by the guard: the record went into pages that nobody will see. */
	return __atomic_load_n(&buf->control->geometry.magic, __ATOMIC_RELAXED) == RELAY_MAGIC ? err : -EBADMSG;
}

static int refuse_step(struct rchan_buf *buf, const void *arg)
{
	return relay_refuse_too_large(buf, *(const size_t *)arg);
}

int relay_buf_refuse_too_large(struct rchan_buf *buf, size_t length)
{
	return on_cpu(buf, refuse_step, &length);
}

static int flush_step(struct rchan_buf *buf, const void *arg)
{
	(void)arg;
	return relay_switch(buf);
}

int relay_buf_flush(struct rchan_buf *buf)
{
	if (__atomic_load_n(&buf->control->flags, __ATOMIC_RELAXED) & RELAY_CLOSED)
		return -EPIPE;
	return on_cpu(buf, flush_step, NULL);
}

static int nothing_step(struct rchan_buf *buf, const void *arg)
{
	(void)arg;
	/* If this thread runs there, the others do not: their sections restart. */
	return relay_rseq_cpu() == buf->cpu ? 0 : RELAY_WRONG_CPU;
}

static int settle(struct rchan_buf *buf)
{
	if (buf->scheme == RELAY_SCHEME_LOCKLESS)
		return relay_seal(buf);
	return on_cpu(buf, nothing_step, NULL);
}

int relay_buf_stop(struct rchan_buf *buf, uint32_t flag, int on)
{
	int err = 0;
	flag &= RELAY_STOPPED;
	if (on) {
		/* Pairs with the test in every section, and with refuse_stopped() after look(). */
		__atomic_fetch_or(&buf->control->flags, flag, __ATOMIC_SEQ_CST);
		err = settle(buf);
	} else {
		__atomic_fetch_and(&buf->control->flags, ~flag, __ATOMIC_SEQ_CST);
	}
	relay_wake(buf, RELAY_ARMED);
	return err;
}

static int wait_for_claims(struct rchan_buf *buf)
{
	for (int waited = 0; relay_claims_busy(buf); waited++) {
		if (waited >= RESET_WAIT_MS)
			return -EBUSY;
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	}
	return 0;
}

static int reset_step(struct rchan_buf *buf, const void *arg)
{
	(void)arg;
	return relay_clear(buf);
}

int relay_buf_reset(struct rchan_buf *buf)
{
	uint32_t flags = __atomic_load_n(&buf->control->flags, __ATOMIC_RELAXED);
	if (flags & RELAY_CLOSED)
		return -EPIPE;
	int err = relay_reader_lock(buf);
	if (err)
		return err;
	err = relay_buf_stop(buf, RELAY_RESETTING, 1);
	if (!err)
		err = wait_for_claims(buf);
	if (!err)
		err = on_cpu(buf, reset_step, NULL);
	if (!err) {
		relay_claims_clear(buf);
		relay_consumer_clear(buf);
	}
	relay_buf_stop(buf, RELAY_RESETTING, 0);
	relay_reader_unlock(buf);
	return err;
}
