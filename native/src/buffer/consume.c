/* SPDX-License-Identifier: MIT */
/*
 * Consuming one buffer.
 *
 *     consumer.position                                   head
 *          v                                               v
 *     |aaaa|bbbb....|ccccccHHHH cc|dddddddddddddddddTTTTddd|      . padding  H hole  T taken, not committed
 *          '----'    '----'    '-''-----------------'             spans; the next read stops at T
 *
 * begin() walks a copy of the consumer's state (buffer/consumer.c) along the data (buffer/walk.c) and remembers where it came
 * to; end() makes that the state.
 *
 * In a format with packets a reader gets finished sub-buffers only, each with a head (buffer/packet.c) in place of its first
 * bytes.
 *
 * In overwrite mode the memory may change under a reader's eyes. It was intact if, after the reading, head is
 * still less than n_subbufs ahead: writers publish a switch before they store into the sub-buffer it enters. In
 * mode callback that sub-buffer may wait to be begun, with the old data in it, until the client says yes; and the one
 * before it may still get a footer, until the client has said anything at all.
 */
#define _GNU_SOURCE
#include "buffer/consume.h"

#include "buffer/head.h"
#include "buffer/walk.h"

#include <string.h>

enum { HOLES_TRIES = 32 }; /* until all holes of one sub-buffer are known */

/* Does `progress` start at or before `state`, and end at or after it? Then a walk may go on from progress->to. */
static bool goes_on(const struct rchan_buf *buf, const struct relay_progress *progress,
                    const struct relay_consumer *state)
{
	const struct relay_consumer *to = &progress->to;
	/* Relaxed: after a reset the caller, who sees it, comes again. In overwrite mode, what was lost since is to be
	 * counted as lost. */
	return progress->is_set && progress->resets == __atomic_load_n(&buf->control->resets, __ATOMIC_RELAXED) &&
	       progress->from <= state->position && state->position <= to->position && to->bytes >= state->bytes &&
	       to->overwritten_bytes == state->overwritten_bytes && to->discarded_bytes >= state->discarded_bytes &&
	       to->torn_bytes >= state->torn_bytes;
}

/* To be called before the walk: what it finds is of this reset or a later one. */
static void start_at(const struct rchan_buf *buf, struct relay_progress *progress, const struct relay_consumer *state)
{
	if (goes_on(buf, progress, state))
		return;
	progress->is_set = true;
	progress->resets = __atomic_load_n(&buf->control->resets, __ATOMIC_RELAXED);
	progress->from = state->position;
	progress->to = *state;
}

int relay_consume_peek(struct rchan_buf *buf, const struct relay_consumer *state)
{
	struct relay_progress *empty = &buf->empty;
	start_at(buf, empty, state);
	struct relay_plan peeked = {.from = empty->to};
	struct relay_span span;
	struct relay_walk walk = {.buf = buf, .plan = &peeked, .spans = &span, .n_spans = 1, .max_bytes = 1};
	int err = relay_walk_plan(&walk);
	if (walk.total)
		return err == -EBADMSG ? err : 1;
	/* Nothing but padding and holes up to there: the next look begins there. */
	if (err != -EBADMSG)
		empty->to = peeked.to;
	return err;
}

uint64_t relay_consume_holes(struct rchan_buf *buf, const struct relay_consumer *state)
{
	struct relay_progress *passed = &buf->passed;
	if (__atomic_load_n(&buf->control->n_holes, __ATOMIC_RELAXED) == state->discarded_records + state->torn_records)
		return 0;
	start_at(buf, passed, state);
	struct relay_plan all = {.from = passed->to};
	struct relay_walk walk = {
	    .buf = buf, .plan = &all, .n_spans = SIZE_MAX, .max_bytes = SIZE_MAX, .holes = &buf->holes_ahead};
	if (relay_walk_plan(&walk) != -EBADMSG && all.to.overwritten_bytes == state->overwritten_bytes)
		passed->to = all.to;
	return passed->to.discarded_bytes - state->discarded_bytes + passed->to.torn_bytes - state->torn_bytes;
}

static int look(struct rchan_buf *buf, struct relay_consumer *state, struct relay_packet *packet,
                uint64_t *start_records, struct relay_span *spans, size_t n_spans)
{
	struct relay_plan look = {.from = *state, .to = *state};
	struct relay_walk walk = {
	    .buf = buf, .plan = &look, .spans = spans, .n_spans = n_spans, .max_bytes = SIZE_MAX, .packet = packet};
	relay_work_begin(buf);
	int result = relay_walk_see_head(&walk);
	uint64_t number = relay_pos_number(buf, state->position);
	*start_records = relay_subbuf_at(buf, state->position).start_records;
	look.to.overwritten_records = 0;
	look.to.records = *start_records;
	if (!result)
		result = relay_walk_say_packet(&walk, packet);
	if (result == 1) {
		walk.until = number + 1;
		buf->work = RELAY_WORK_SUBBUF;
		result = relay_walk_data(&walk);
		*state = look.to;
		if (!result)
			result = relay_pos_number(buf, look.to.position) == walk.until ? (int)walk.n_used : -EBADMSG;
	}
	if (relay_is_lapped(buf, walk.head, number) || relay_consume_stands(buf, number)) {
		relay_damage_forget(&buf->damage);
		return -EAGAIN;
	}
	return result;
}

int relay_consume_look(struct rchan_buf *buf, struct relay_consumer *state, struct relay_packet *packet,
                       uint64_t *start_records, struct relay_span *spans, size_t n_spans)
{
	pthread_mutex_lock(&buf->walking);
	int n = look(buf, state, packet, start_records, spans, n_spans);
	pthread_mutex_unlock(&buf->walking);
	return n;
}

int relay_consume_stands(struct rchan_buf *buf, uint64_t number)
{
	uint64_t head, second;
	/* The caller's loads of the data before this load of head. */
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	if (relay_head(buf, &head, &second))
		return -EBADMSG;
	/* In either mode: in no-overwrite, what is consumed may be overwritten. */
	return relay_is_lapped(buf, head, number) ? -EOVERFLOW : 0;
}

/* The bytes that readers get between the states `from` and `to`. */
static uint64_t data_between(const struct relay_consumer *from, const struct relay_consumer *to)
{
	return to->bytes - from->bytes - (to->overwritten_bytes - from->overwritten_bytes) -
	       (to->torn_bytes - from->torn_bytes) - (to->discarded_bytes - from->discarded_bytes);
}

/*
 * Let a walk that passes data over, from `state` on, begin where the last such walk ran out of work, unless that lies
 * behind what is asked for. What is overwritten since counts as passed over where it was passed, and as lost elsewhere.
 */
static void skip_ahead(struct relay_walk *walk, const struct relay_consumer *state)
{
	struct relay_progress *skipped = &walk->buf->skipped;
	if (!walk->skip)
		return;
	if (goes_on(walk->buf, skipped, state) && data_between(state, &skipped->to) > walk->skip)
		skipped->is_set = false;
	start_at(walk->buf, skipped, state);
	walk->skip -= data_between(state, &skipped->to);
	walk->plan->from = skipped->to;
}

static void free_hole(struct relay_claim *claim, uint64_t passed)
{
	uint64_t word = __atomic_load_n(&claim->word, __ATOMIC_RELAXED);
	/* The claim may have been freed by relay_claims_drop_holes() since, and hold a later hole that nobody has passed. Release:
	 * pairs with the acquire in is_free(), base/claim_table.c. */
	if ((word & RELAY_CLAIM_STATE) == RELAY_CLAIM_HOLE && (word & RELAY_POSITION_MASK) < passed)
		__atomic_compare_exchange_n(&claim->word, &word, RELAY_CLAIM_FREE, false, __ATOMIC_RELEASE,
		                            __ATOMIC_RELAXED);
}

/* The plan's end becomes the state, its holes become free claims. */
static void carry_out(struct rchan_buf *buf)
{
	relay_consumer_publish(buf, &buf->plan.to);
	for (uint32_t i = 0; i < RELAY_N_CLAIMS / 64; i++)
		for (uint64_t left = buf->plan.holes[i]; left; left &= left - 1)
			free_hole(&buf->claims[64 * i + (uint32_t)__builtin_ctzll(left)], buf->plan.to.position);
}

static int begin_behind(struct rchan_buf *buf, uint64_t skip, size_t max_bytes, struct relay_span *spans,
                        size_t n_spans, size_t *total, uint64_t *end)
{
	struct relay_consumer state;
	*total = 0;
	int err = relay_reader_lock(buf);
	if (err)
		return err;
	struct relay_walk walk = {.buf = buf,
	                          .plan = &buf->plan,
	                          .skip = skip,
	                          .spans = spans,
	                          .n_spans = n_spans,
	                          .max_bytes = max_bytes,
	                          .packets = buf->packets};
	relay_work_begin(buf);
	err = relay_consumer_read(buf, &state);
	if (!err) {
		buf->plan.from = state;
		skip_ahead(&walk, &state);
		err = relay_walk_plan(&walk);
	}
	/* The last holder may have died in the middle of relay_consumer_publish(). */
	if (err != -EBADMSG && __atomic_load_n(&buf->control->consumed, __ATOMIC_RELAXED) != state.position)
		relay_consumer_publish(buf, &state);
	if (err != -EBADMSG && walk.total) {
		buf->plan.to.reads++;
		buf->plan.active = true;
		*end = buf->plan.to.bytes;
		*total = walk.total;
		return (int)walk.n_used;
	}
	if (err == -EINPROGRESS && skip)
		buf->skipped.to = buf->plan.to;
	if (err != -EBADMSG && !skip && memcmp(&buf->plan.to, &buf->plan.from, sizeof(buf->plan.to)) != 0)
		carry_out(buf); /* padding, holes and losses passed, nothing to give, nothing passed over */
	relay_reader_unlock(buf);
	return err == -EINPROGRESS ? -EBUSY : err;
}

int relay_consume_begin_behind(struct rchan_buf *buf, uint64_t skip, size_t max_bytes, struct relay_span *spans,
                               size_t n_spans, size_t *total, uint64_t *end)
{
	pthread_mutex_lock(&buf->walking);
	int n = begin_behind(buf, skip, max_bytes, spans, n_spans, total, end);
	pthread_mutex_unlock(&buf->walking);
	return n;
}

int relay_consume_begin(struct rchan_buf *buf, size_t max_bytes, struct relay_span *spans, size_t n_spans,
                        size_t *total)
{
	uint64_t end;
	return relay_consume_begin_behind(buf, 0, max_bytes, spans, n_spans, total, &end);
}

int relay_consume_to(struct rchan_buf *buf, uint64_t at)
{
	int err = relay_reader_lock(buf);
	if (err)
		return err;
	struct relay_walk walk = {.buf = buf, .plan = &buf->plan, .at = at};
	pthread_mutex_lock(&buf->walking);
	relay_work_begin(buf);
	err = relay_consumer_read(buf, &buf->plan.from);
	if (!err)
		err = relay_walk_plan(&walk);
	if (err != -EBADMSG)
		carry_out(buf);
	pthread_mutex_unlock(&buf->walking);
	relay_reader_unlock(buf);
	return err == -EINPROGRESS ? -EBUSY : err;
}

/* A callback may be about to let the sub-buffer at `start` be overwritten. 1: it did, or that cannot be known. */
static int wait_for_callback(struct rchan_buf *buf, uint64_t start)
{
	uint64_t head, second;
	if (relay_switch_watch(buf) < 0)
		return 1;
	return relay_head(buf, &head, &second) || relay_consumer_is_lapped(buf, head, start);
}

int relay_consume_valid(struct rchan_buf *buf)
{
	uint64_t head, second;
	/* The caller's loads of the data before this load of head. */
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	if (!buf->plan.active || relay_head(buf, &head, &second))
		return -EBADMSG;
	if (relay_consumer_is_lapped(buf, head, buf->plan.start))
		return -EOVERFLOW;
	bool undecided = buf->begins && buf->mode != RELAY_NO_OVERWRITE &&
	                 relay_pos_ahead(buf, head, buf->plan.start) == buf->n_subbufs;
	return undecided && wait_for_callback(buf, buf->plan.start) ? -EOVERFLOW : 0;
}

uint64_t relay_consume_records(const struct rchan_buf *buf)
{
	const struct relay_consumer *from = &buf->plan.from, *to = &buf->plan.to;
	if (!buf->plan.active)
		return 0;
	return to->records - from->records - (to->overwritten_records - from->overwritten_records) -
	       (to->torn_records - from->torn_records) - (to->discarded_records - from->discarded_records);
}

void relay_consume_end(struct rchan_buf *buf)
{
	if (!buf->plan.active)
		return;
	buf->plan.active = false;
	carry_out(buf);
	relay_reader_unlock(buf);
}

void relay_consume_abort(struct rchan_buf *buf)
{
	if (!buf->plan.active)
		return;
	buf->plan.active = false;
	relay_reader_unlock(buf);
}

int relay_buf_subbufs_consumed(struct rchan_buf *buf, uint64_t n)
{
	/* As in the kernel, such a call is ignored: the consumer's position stays, even if it was overwritten. */
	if (n == 0 || n > buf->n_subbufs)
		return 0;
	int err = relay_reader_lock(buf);
	if (err)
		return err;
	struct relay_walk walk = {.buf = buf, .plan = &buf->plan, .n_spans = SIZE_MAX, .max_bytes = SIZE_MAX};
	pthread_mutex_lock(&buf->walking);
	buf->plan = (struct relay_plan){0};
	err = relay_consumer_read(buf, &buf->plan.to);
	if (!err)
		err = relay_consumer_catch_up(buf, &buf->plan.to);
	if (!err)
		err = relay_walk_see_head(&walk);
	for (int tries = 0; !err && n && tries < HOLES_TRIES;) {
		relay_work_begin(buf); /* for each: the caller has said how many */
		int passed = relay_walk_pass_subbuf(&walk);
		if (passed == 1)
			n--;
		tries = passed == 1 ? 0 : passed == 0 ? HOLES_TRIES : tries + 1;
		err = passed == -EBADMSG ? passed : 0;
	}
	if (!err)
		carry_out(buf);
	pthread_mutex_unlock(&buf->walking);
	relay_reader_unlock(buf);
	return err;
}
