/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "stress_stream.h"

#include <errno.h>
#include <sched.h>

/* Mostly where this thread runs, as relay_write() does; now and then across, as a file server does. */
static struct rchan_buf *pick_buffer(struct stress_stream *s)
{
	uint64_t r = stress_random(&s->random);
	unsigned cpu = (unsigned)sched_getcpu();

	if (r % 64 == 0)
		cpu = (unsigned)(r >> 32);
	return s->bufs[cpu % s->n_buffers];
}

static int copy_record(struct stress_stream *s, uint32_t length)
{
	if (s->filled != s->sequence + 1)
		stress_fill(s->record, s->id, (uint32_t)s->sequence);
	s->filled = s->sequence + 1;
	if (s->chan)
		return relay_write(s->chan, s->record, length);
	return relay_buf_write(pick_buffer(s), s->record, length);
}

static int reserve(struct stress_stream *s, struct stress_open *open, uint32_t length)
{
	open->buf = NULL;
	open->length = length;
	open->sequence = s->sequence;
	if (!s->chan) {
		open->buf = pick_buffer(s);
		return relay_buf_reserve(open->buf, length, &open->to);
	}
	open->to = relay_reserve(s->chan, length);
	return open->to ? 0 : -errno;
}

/* What was kept open is filled only now: who reads it before finds what lay there. */
static void finish(const struct stress_stream *s, const struct stress_open *open)
{
	if (open->discard)
		memset(open->to, 0xdd, open->length);
	else
		stress_fill(open->to, s->id, (uint32_t)open->sequence);
	if (open->discard && open->buf)
		relay_buf_discard(open->buf, open->to);
	else if (open->discard)
		relay_discard(s->chan, open->to);
	else if (open->buf)
		relay_buf_commit(open->buf, open->to);
	else
		relay_commit(s->chan, open->to);
}

static bool change_state(struct stress_open *open, int from, int to)
{
	return __atomic_compare_exchange_n(&open->state, &(int){from}, to, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

static int state_of(const struct stress_open *open)
{
	return __atomic_load_n(&open->state, __ATOMIC_ACQUIRE);
}

/* All records below the first that is still open are written. */
static void note_written(struct stress_stream *s)
{
	uint64_t written = s->sequence;
	int i;

	for (i = 0; i < STRESS_N_OPEN; i++)
		if (state_of(&s->open[i]) != OPEN_FREE && !s->open[i].discard && s->open[i].sequence < written)
			written = s->open[i].sequence;
	__atomic_store_n(&s->slot->written, written, __ATOMIC_SEQ_CST);
}

static void let_go(struct stress_stream *s, struct stress_open *open)
{
	if (open->discard) {
		s->slot->discarded_bytes += open->length;
		__atomic_store_n(&s->slot->discarded, s->slot->discarded + 1, __ATOMIC_SEQ_CST);
	}
	__atomic_store_n(&open->state, OPEN_FREE, __ATOMIC_RELEASE);
}

/* Finish one. false: another thread is doing so. */
static bool close_one(struct stress_stream *s, struct stress_open *open)
{
	if (change_state(open, OPEN_KEPT, OPEN_BUSY) || change_state(open, OPEN_HANDED, OPEN_BUSY)) {
		finish(s, open);
		__atomic_store_n(&open->state, OPEN_DONE, __ATOMIC_RELEASE);
	}
	if (state_of(open) == OPEN_DONE)
		let_go(s, open);
	return state_of(open) == OPEN_FREE;
}

void stress_settle(struct stress_stream *s)
{
	int i, from = (int)(stress_random(&s->random) % STRESS_N_OPEN);

	for (i = 0; i < STRESS_N_OPEN; i++)
		while (!close_one(s, &s->open[(from + i) % STRESS_N_OPEN]))
			sched_yield();
	note_written(s);
}

void stress_serve(struct stress_stream *other)
{
	int i;

	for (i = 0; i < STRESS_N_OPEN; i++) {
		struct stress_open *open = &other->open[i];

		if (!change_state(open, OPEN_HANDED, OPEN_BUSY))
			continue;
		finish(other, open);
		__atomic_store_n(&open->state, OPEN_DONE, __ATOMIC_RELEASE);
		return;
	}
}

/* A place for a reservation, made free if it must be. */
static struct stress_open *take_place(struct stress_stream *s)
{
	struct stress_open *open = &s->open[stress_random(&s->random) % STRESS_N_OPEN];

	while (!close_one(s, open))
		sched_yield();
	return open;
}

/* One of eight is finished at once, two are for another thread to finish. */
static void keep(struct stress_stream *s, struct stress_open *open)
{
	uint64_t r = stress_random(&s->random) % 8;

	__atomic_store_n(&open->state, r < 2 && s->hands_over ? OPEN_HANDED : OPEN_KEPT, __ATOMIC_RELEASE);
	if (r == 7)
		close_one(s, open);
}

static void count_refusal(const struct stress_stream *s, uint32_t length, int err)
{
	struct stress_slot *slot = s->slot;

	if (err == -ENOSPC) {
		slot->full_records++;
		slot->full_bytes += length;
	} else if (err == -ECANCELED) {
		slot->disabled_records++;
		slot->disabled_bytes += length;
	} else if (err != -EPIPE && err != -EBUSY && !(err == -EPERM && s->unplugged)) {
		slot->other++;
		slot->other_errno = (uint64_t)-err;
	}
}

/* Half of them too short to hold the list of holes. */
static int discard_something(struct stress_stream *s)
{
	struct stress_open *open = take_place(s);
	uint64_t r = stress_random(&s->random);
	uint32_t length = 1 + (uint32_t)(r >> 8) % (r % 2 ? 15 : 1000);
	int err;

	__atomic_store_n(&s->slot->discarding, s->slot->discarding + 1, __ATOMIC_SEQ_CST);
	open->discard = true;
	err = reserve(s, open, length);
	if (!err) {
		keep(s, open);
		return 0;
	}
	count_refusal(s, length, err);
	__atomic_store_n(&s->slot->discarding, s->slot->discarding - 1, __ATOMIC_SEQ_CST);
	return err;
}

static int reserve_record(struct stress_stream *s, struct stress_open *open, uint32_t length)
{
	int err;

	open->discard = false;
	err = reserve(s, open, length);
	if (!err)
		keep(s, open);
	return err;
}

/* The order of the two stores around the write is what makes the ledger true after a SIGKILL. */
int stress_write_next(struct stress_stream *s)
{
	uint32_t length = stress_length(s->id, (uint32_t)s->sequence);
	uint64_t how = s->reserves ? stress_random(&s->random) % 8 : 7;
	struct stress_open *open = how < 3 ? take_place(s) : NULL;
	int err = how == 3 ? discard_something(s) : 0;

	if (err)
		return err;
	__atomic_store_n(&s->slot->tried, s->sequence + 1, __ATOMIC_SEQ_CST);
	err = open ? reserve_record(s, open, length) : copy_record(s, length);
	if (!err)
		s->sequence++;
	else
		count_refusal(s, length, err);
	note_written(s);
	if (err)
		__atomic_store_n(&s->slot->tried, s->sequence, __ATOMIC_SEQ_CST);
	return err;
}
