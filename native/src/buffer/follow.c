/* SPDX-License-Identifier: MIT */
/*
 * Reading a buffer beside its consumer. A consumer gets finished sub-buffers only; relay_follow_copy() copies records as
 * soon as they are committed.
 *
 *     consumer            follow                        head
 *     v                   v                             v
 *     |aaaaaaaa|bbbbbbbb|cccddddddddHHHeeeee|ffffffffTTTfff     H hole   T taken, not committed
 *                           '-----'    '---' '------'           the next three pieces
 *
 * Consumed data stay in memory until writers enter the sub-buffer. But the consumer has freed the claims that were holes
 * there; so a reader behind it, which it has passed together with a hole, goes on where the consumer is.
 *
 * The entry of a sub-buffer (struct relay_subbuf) says how many records were written before it. Those that were not
 * passed here are lost: overwritten, torn, or skipped. To them are added the records that the buffer has refused.
 */
#define _GNU_SOURCE
#include "buffer/follow.h"

#include "buffer/consume.h"
#include "buffer/head.h"
#include "buffer/walk.h"

#include <string.h>

enum { COPY_TRIES = 100, LARGE = 1 << 16, LARGE_TRIES = 4 }; /* LARGE_TRIES: if more than LARGE bytes are asked for */

void relay_follow_start(struct relay_follow *follow, struct rchan_buf *buf, bool is_new)
{
	/* Relaxed: if the buffer is reset meanwhile, relay_follow_copy() begins again. */
	uint32_t resets = __atomic_load_n(&buf->control->resets, __ATOMIC_RELAXED);
	*follow = (struct relay_follow){.buf = buf, .resets = resets, .has_begun = is_new};
}

static void move_to(struct relay_follow *follow, uint64_t number)
{
	if (number == follow->number)
		return;
	follow->number = number;
	follow->offset = 0;
	follow->before += follow->here;
	follow->here = 0;
}

/* True if sub-buffer `number` has begun, so that its entry is valid. */
static bool has_begun(const struct rchan_buf *buf, uint64_t number, uint64_t head)
{
	uint64_t last = relay_pos_number(buf, head);
	return number < last || (number == last && relay_has_begun(buf, head));
}

/* The number of records that were refused before the end of sub-buffer `number`. */
static uint64_t refused_before_end(const struct rchan_buf *buf, uint64_t number, uint64_t head)
{
	const struct relay_subbuf *next = relay_pos_entry(buf, relay_pos_start(buf, number + 1));
	/* Relaxed: published by head, which the caller has loaded. */
	return has_begun(buf, number + 1, head) ? __atomic_load_n(&next->start_lost, __ATOMIC_RELAXED)
	                                        : relay_lost(buf);
}

/* What copy_piece() finds out about the next piece; valid if is_sound() returns true afterwards. */
struct found {
	struct relay_consumer consumer; /* the consumer's state before */
	struct relay_walk walk;
	struct relay_plan plan;
	struct relay_span spans[2];
	uint64_t before, base, lost, refused; /* new values for the same fields of struct relay_follow */
};

/* Compute `before`, `base` and `lost`. Returns 0 or -EBADMSG. */
static int count_lost(const struct relay_follow *follow, struct found *found)
{
	struct rchan_buf *buf = follow->buf;
	struct relay_damage *damage = &buf->damage;
	uint64_t number = follow->number, start = relay_pos_start(buf, number), head = found->walk.head;
	uint64_t records = found->walk.head_records, lost = refused_before_end(buf, number, head), at_start = lost;
	if (has_begun(buf, number, head)) {
		records = relay_subbuf_at(buf, start).start_records;
		/* Relaxed: published by head. */
		at_start = __atomic_load_n(&relay_pos_entry(buf, start)->start_lost, __ATOMIC_RELAXED);
	}
	found->before = follow->has_begun ? follow->before : records;
	found->base = follow->has_begun ? follow->base : at_start;
	if (relay_damage_above(damage, "the number of records refused before the end of sub-buffer []", number, lost,
	                       INT64_MAX) ||
	    relay_damage_above(damage, "relay_subbuf[].start_lost", number, at_start, INT64_MAX) ||
	    relay_damage_above(damage, "relay_subbuf[].start_records", number, records, RELAY_RECORDS_MASK) ||
	    relay_damage_below(damage, "relay_subbuf[].start_records", number, records, found->before))
		return -EBADMSG;
	found->refused = lost > found->base + follow->refused ? lost - found->base : follow->refused;
	lost += records - found->before;
	/* A record that was refused while the next sub-buffer began may be in an earlier relay_lost() and not in
	 * start_lost. */
	found->lost = lost > found->base + follow->lost ? lost - found->base : follow->lost;
	return 0;
}

/* Move to the consumer if it is ahead and has passed holes since this reader was not behind it. */
static void pass_freed_holes(struct relay_follow *follow, const struct relay_consumer *consumer)
{
	const struct rchan_buf *buf = follow->buf;
	uint64_t holes = relay_n_holes(consumer), position = consumer->position;
	uint64_t number = relay_pos_number(buf, position), offset = relay_pos_offset(buf, position);
	bool is_behind = follow->number < number || (follow->number == number && follow->offset < offset);
	if (is_behind && follow->holes == holes)
		return;
	if (is_behind) {
		move_to(follow, number);
		follow->offset = offset;
	}
	follow->holes = holes;
}

/* Load the consumer's state and head, and move to the first sub-buffer that can be read. Returns 1; 0: there is none;
 * -EAGAIN: call again; -EBADMSG. */
static int find_subbuf(struct relay_follow *follow, struct found *found)
{
	struct rchan_buf *buf = follow->buf;
	if (relay_consumer_read(buf, &found->consumer) || relay_walk_see_head(&found->walk))
		return -EBADMSG;
	/* Relaxed: as in relay_follow_start(). Odd while the buffer is being reset. */
	uint32_t resets = __atomic_load_n(&buf->control->resets, __ATOMIC_RELAXED);
	if (resets % 2)
		return 0;
	if (resets != follow->resets) {
		relay_follow_start(follow, buf, true);
		return -EAGAIN;
	}
	uint64_t head = found->walk.head, last = relay_pos_number(buf, head);
	/* relay_follow_leave() may have moved behind the last sub-buffer. */
	if (relay_damage_above(&buf->damage, "the number of sub-buffers that were read", 0, follow->number, last + 1))
		return -EBADMSG;
	if (follow->number > last)
		return 0;
	const uint64_t number = follow->number, offset = follow->offset;
	if (relay_is_lapped(buf, head, follow->number))
		move_to(follow, relay_oldest(buf, head));
	pass_freed_holes(follow, &found->consumer);
	follow->n_jumps += follow->number != number || follow->offset != offset;
	return follow->number <= last;
}

/* True if the sub-buffer was not overwritten, and the consumer has passed no hole in it, since find_subbuf(). */
static bool is_sound(const struct relay_follow *follow, const struct found *found)
{
	struct relay_consumer now;
	if (relay_consume_stands(follow->buf, follow->number) || relay_consumer_read(follow->buf, &now))
		return false;
	/* Relaxed: the fence in relay_consume_stands() orders it after the loads of the data. */
	if (__atomic_load_n(&follow->buf->control->resets, __ATOMIC_RELAXED) != follow->resets)
		return false;
	return relay_n_holes(&now) == relay_n_holes(&found->consumer) ||
	       follow->number >= relay_first_untouched(follow->buf, &now);
}

/* True if the walk ended before head, and not at a reservation that is not committed. */
static bool is_stopped_by_hole(const struct relay_walk *walk)
{
	const struct relay_claim_view *stop = &walk->stop;
	uint64_t pos = walk->plan->to.position;
	bool is_taken = stop->claim && (stop->word & RELAY_POSITION_MASK) == pos &&
	                (stop->word & RELAY_CLAIM_STATE) != RELAY_CLAIM_HOLE;
	return pos < walk->head && !is_taken;
}

/* Fill in the next piece; before a hole it may be empty. Returns 1; 0: there is none; -EAGAIN; -EBADMSG. */
static int describe(const struct relay_follow *follow, struct found *found, struct relay_piece *piece)
{
	struct rchan_buf *buf = follow->buf;
	struct relay_walk *walk = &found->walk;
	struct relay_consumer *to = &found->plan.to;
	uint64_t start = relay_pos_start(buf, follow->number), head = walk->head;
	uint64_t from = start + (follow->offset ? follow->offset : relay_reserved_at(buf, follow->number));
	uint64_t last = relay_pos_number(buf, head);
	/* The sub-buffer has not begun, or head is not behind the start of the piece. */
	if (!has_begun(buf, follow->number, head) || (follow->number == last && head < from))
		return 0;
	*to = (struct relay_consumer){.position = from, .records = relay_subbuf_at(buf, start).start_records};
	walk->until = follow->number + 1;
	int err = relay_walk_data(walk);
	if (err == -EBADMSG)
		return err;
	if (to->position == from)
		return err ? -EAGAIN : 0;
	/* Relaxed: published by head. */
	*piece =
	    (struct relay_piece){.number = follow->number,
	                         .end_number = relay_pos_number(buf, to->position),
	                         .end_offset = relay_pos_offset(buf, to->position),
	                         .begin = __atomic_load_n(&relay_pos_entry(buf, start)->start_clock, __ATOMIC_RELAXED),
	                         .has_more = err || walk->total == walk->max_bytes || is_stopped_by_hole(walk)};
	if (walk->n_used) {
		piece->offset = (uint64_t)((const unsigned char *)found->spans[0].data - relay_pos_data(buf, start));
		piece->length = found->spans[0].length;
	}
	if (walk->n_used == 2) {
		piece->end_number = piece->number;
		piece->end_offset = piece->offset + piece->length;
		piece->has_more = true;
	}
	if (piece->end_number > piece->number)
		piece->has_more |= piece->end_number < last || relay_pos_offset(buf, head) > 0;
	return 1;
}

static int copy_piece(struct relay_follow *follow, struct relay_piece *piece, void *to, size_t size)
{
	struct rchan_buf *buf = follow->buf;
	relay_work_begin(buf);
	/* Only tries that fail are counted, because buf->work limits the others. */
	for (int tries = size > LARGE ? LARGE_TRIES : COPY_TRIES; tries > 0 && buf->work;) {
		struct found found = {.walk = {.buf = buf, .n_spans = 2, .max_bytes = size}};
		found.walk.plan = &found.plan;
		found.walk.spans = found.spans;
		int result = find_subbuf(follow, &found);
		if (result == -EAGAIN) {
			tries--;
			continue;
		}
		if (result <= 0)
			return result;
		result = count_lost(follow, &found) ? -EBADMSG : describe(follow, &found, piece);
		if (result == 1 && piece->length)
			memcpy(to, found.spans[0].data, piece->length);
		if (!is_sound(follow, &found)) {
			relay_damage_forget(&buf->damage);
			tries--;
			continue;
		}
		if (result == -EBADMSG)
			return result;
		follow->has_begun = true;
		follow->before = found.before;
		follow->base = found.base;
		follow->lost = found.lost;
		follow->refused = found.refused;
		if (result != 1 || piece->length)
			return result;
		relay_follow_pass(follow, piece, 0, 0);
	}
	return -EAGAIN;
}

int relay_follow_copy(struct relay_follow *follow, struct relay_piece *piece, void *to, size_t size)
{
	if (!follow->buf->packets && !follow->buf->is_timed)
		return -EINVAL;
	pthread_mutex_lock(&follow->buf->walking);
	int result = copy_piece(follow, piece, to, size);
	pthread_mutex_unlock(&follow->buf->walking);
	return result;
}

void relay_follow_pass(struct relay_follow *follow, const struct relay_piece *piece, size_t bytes, uint64_t records)
{
	follow->here += records;
	if (bytes < piece->length) {
		follow->offset = piece->offset + bytes;
		return;
	}
	move_to(follow, piece->end_number);
	follow->offset = piece->end_offset;
}

void relay_follow_leave(struct relay_follow *follow, const struct relay_piece *piece)
{
	move_to(follow, piece->number + 1);
}

int relay_follow_end(struct relay_follow *follow)
{
	struct relay_walk walk = {.buf = follow->buf};
	uint64_t passed = follow->before + follow->here;
	if (relay_walk_see_head(&walk))
		return -EBADMSG;
	uint64_t refused = relay_lost(follow->buf);
	/* After a reset or damage, the counts are not those of the records that were passed. */
	if (!follow->has_begun || walk.head_records < passed || refused > INT64_MAX)
		return 0;
	uint64_t lost = refused + walk.head_records - passed;
	if (refused > follow->base + follow->refused)
		follow->refused = refused - follow->base;
	if (lost > follow->base + follow->lost)
		follow->lost = lost - follow->base;
	return 0;
}

int relay_follow_consume(struct relay_follow *follow, bool all)
{
	struct rchan_buf *buf = follow->buf;
	struct relay_consumer consumer;
	uint64_t head, second;
	if (buf->mode != RELAY_NO_OVERWRITE)
		return 0;
	if (relay_consumer_read(buf, &consumer) || relay_head_checked(buf, &head, &second))
		return -EBADMSG;
	uint64_t at = relay_pos_number(buf, consumer.position), last = relay_pos_number(buf, head);
	bool is_half_full = last >= at && last - at >= (buf->n_subbufs + 1) / 2;
	if (at >= follow->number || !(all || is_half_full))
		return 0;
	uint64_t n = follow->number - at;
	return relay_buf_subbufs_consumed(buf, n < buf->n_subbufs ? n : buf->n_subbufs);
}
