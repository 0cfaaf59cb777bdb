/* SPDX-License-Identifier: MIT */
/*
 * Reading one buffer.
 *
 *     consumer.position                                   head
 *          v                                               v
 *     |aaaa|bbbb....|ccccccHHHH cc|dddddddddddddddddTTTTddd|      . padding  H hole  T reserved, not committed
 *          '----'    '----'    '-''-----------------'             spans; the next read stops at T
 *
 * relay_consume_begin() takes the reader lock, walks a copy of the consumer's state (buffer/consumer.c) along the
 * data (buffer/walk.c), and returns the data as spans. relay_consume_end() stores the state that the walk has
 * reached, and releases the lock.
 *
 * In a format with packets a reader gets finished sub-buffers only, each with a header (buffer/packet.c) in
 * place of its first bytes.
 *
 * In overwrite mode writers may overwrite the data while they are read. The data were intact if, after they were read,
 * head is still less than n_subbufs sub-buffers ahead of them, because a switch is published before a record is stored
 * in the sub-buffer that it enters. In mode callback, a sub-buffer that was entered may keep the old data until the
 * client lets it begin (buffer/subbuf_start.c), so there head may be n_subbufs ahead; and the sub-buffer before it may
 * still get a footer until the client's callback has returned.
 */
#define _GNU_SOURCE
#include "buffer/consume.h"

#include "buffer/head.h"
#include "buffer/walk.h"

#include <string.h>

/* True if `state` lies between the start and the end of `progress`, so that a walk from `state` may
 * continue at progress->to. */
static bool may_continue(const struct rchan_buf *buf, const struct relay_progress *progress,
                         const struct relay_consumer *state)
{
	const struct relay_consumer *to = &progress->to;
	/* Relaxed: a caller that was interrupted by a reset tries again. If the losses by overwriting have changed,
	 * the walk starts at `state`, so that it counts them. */
	return progress->is_set && progress->resets == __atomic_load_n(&buf->control->resets, __ATOMIC_RELAXED) &&
	       progress->from <= state->position && state->position <= to->position && to->bytes >= state->bytes &&
	       to->overwritten_bytes == state->overwritten_bytes && to->discarded_bytes >= state->discarded_bytes &&
	       to->torn_bytes >= state->torn_bytes;
}

/* Let `progress` start at `state`, unless a walk from there may continue at its end. Called before the walk, which
 * therefore belongs to this value of `resets` or a later one. */
static void start_at(const struct rchan_buf *buf, struct relay_progress *progress, const struct relay_consumer *state)
{
	if (may_continue(buf, progress, state))
		return;
	progress->is_set = true;
	/* Relaxed: as in may_continue(). */
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
	/* There are only padding and holes up to there, so the next call starts there. */
	if (err != -EBADMSG)
		empty->to = peeked.to;
	return err;
}

uint64_t relay_consume_holes(struct rchan_buf *buf, const struct relay_consumer *state)
{
	struct relay_progress *passed = &buf->passed;
	/* Relaxed: a count that is out of date only makes the result out of date. */
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

static int describe_subbuf(struct rchan_buf *buf, struct relay_consumer *state, struct relay_packet *packet,
                           uint64_t *start_records, struct relay_span *spans, size_t n_spans)
{
	struct relay_plan plan = {.from = *state, .to = *state};
	struct relay_walk walk = {
	    .buf = buf, .plan = &plan, .spans = spans, .n_spans = n_spans, .max_bytes = SIZE_MAX, .packet = packet};
	relay_work_begin(buf);
	int result = relay_walk_see_head(&walk);
	uint64_t number = relay_pos_number(buf, state->position);
	*start_records = relay_subbuf_at(buf, state->position).start_records;
	plan.to.overwritten_records = 0;
	plan.to.records = *start_records;
	if (!result)
		result = relay_walk_say_packet(&walk, packet);
	if (result == 1) {
		walk.until = number + 1;
		buf->work = RELAY_WORK_SUBBUF;
		result = relay_walk_data(&walk);
		*state = plan.to;
		if (!result)
			result = relay_pos_number(buf, plan.to.position) == walk.until ? (int)walk.n_used : -EBADMSG;
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
	int n = describe_subbuf(buf, state, packet, start_records, spans, n_spans);
	pthread_mutex_unlock(&buf->walking);
	return n;
}

int relay_consume_stands(struct rchan_buf *buf, uint64_t number)
{
	uint64_t head, second;
	/* Keeps the caller's loads of the data before the load of head. Pairs with switch_subbuf() in
	 * buffer/try_reserve.c, which changes head before anything is overwritten. */
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	if (relay_head(buf, &head, &second))
		return -EBADMSG;
	/* In every mode, because in mode no-overwrite, too, data that were consumed may be overwritten. */
	return relay_is_lapped(buf, head, number) ? -EOVERFLOW : 0;
}

/* The bytes of data between the states `from` and `to`, without holes and losses. */
static uint64_t data_between(const struct relay_consumer *from, const struct relay_consumer *to)
{
	return to->bytes - from->bytes - (to->overwritten_bytes - from->overwritten_bytes) -
	       (to->torn_bytes - from->torn_bytes) - (to->discarded_bytes - from->discarded_bytes);
}

/*
 * Let a walk that skips data from `state` on continue where the last such walk has used up its work, unless that is
 * past the data that the caller wants. Of the data that are overwritten by now, those that were skipped count as
 * skipped, and the others as lost.
 */
static void skip_ahead(struct relay_walk *walk, const struct relay_consumer *state)
{
	struct relay_progress *skipped = &walk->buf->skipped;
	if (!walk->skip)
		return;
	if (may_continue(walk->buf, skipped, state) && data_between(state, &skipped->to) > walk->skip)
		skipped->is_set = false;
	start_at(walk->buf, skipped, state);
	walk->skip -= data_between(state, &skipped->to);
	walk->plan->from = skipped->to;
}

static void free_hole(struct relay_claim *claim, uint64_t passed)
{
	/* Relaxed: the compare-and-swap checks the word. */
	uint64_t word = __atomic_load_n(&claim->word, __ATOMIC_RELAXED);
	/* Since the walk, relay_claims_drop_holes() may have freed the claim, and it may be a later hole now, which
	 * no reader has passed. Release: pairs with the acquire in is_free() in base/claim_table.c. */
	if ((word & RELAY_CLAIM_STATE) == RELAY_CLAIM_HOLE && (word & RELAY_POSITION_MASK) < passed)
		__atomic_compare_exchange_n(&claim->word, &word, RELAY_CLAIM_FREE, false, __ATOMIC_RELEASE,
		                            __ATOMIC_RELAXED);
}

/* Store the plan's end as the consumer's state, and free the claims of the holes that it has passed. The
 * caller has the reader lock. */
static void publish_plan(struct rchan_buf *buf)
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
	/* The last holder of the lock may have died in relay_consumer_publish(), between the store of
	 * `current` and that of `consumed`. */
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
	/* nothing to return, but padding, holes or losses were passed */
	if (err != -EBADMSG && !skip && memcmp(&buf->plan.to, &buf->plan.from, sizeof(buf->plan.to)) != 0)
		publish_plan(buf);
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

/* Consume, without returning data, what `walk` passes. */
static int pass(struct rchan_buf *buf, struct relay_walk *walk)
{
	int err = relay_reader_lock(buf);
	if (err)
		return err;
	pthread_mutex_lock(&buf->walking);
	relay_work_begin(buf);
	err = relay_consumer_read(buf, &buf->plan.from);
	if (!err)
		err = relay_walk_plan(walk);
	if (err != -EBADMSG)
		publish_plan(buf);
	pthread_mutex_unlock(&buf->walking);
	relay_reader_unlock(buf);
	return err == -EINPROGRESS ? -EBUSY : err;
}

int relay_consume_to(struct rchan_buf *buf, uint64_t at)
{
	struct relay_walk walk = {.buf = buf, .plan = &buf->plan, .at = at};
	return pass(buf, &walk);
}

/* Wait for a callback that may let the sub-buffer at `start` be overwritten. Returns 1 if it is overwritten now, or
 * that cannot be found out; otherwise 0. */
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
	if (!buf->plan.active)
		return -EBADMSG;
	/* What is unread is not overwritten. Without a load of head, its cache line stays with the writer's CPU. */
	if (buf->mode == RELAY_NO_OVERWRITE)
		return 0;
	/* Keeps the caller's loads of the data before the load of head. Pairs with switch_subbuf() in
	 * buffer/try_reserve.c, which changes head before anything is overwritten. */
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	if (relay_head(buf, &head, &second))
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
	publish_plan(buf);
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
	/* As in the kernel, such a call is ignored: even if the consumer's position is
	 * overwritten, it does not change. */
	if (n == 0 || n > buf->n_subbufs)
		return 0;
	struct relay_walk walk = {
	    .buf = buf, .plan = &buf->plan, .n_subbufs = n, .n_spans = SIZE_MAX, .max_bytes = SIZE_MAX};
	return pass(buf, &walk);
}
