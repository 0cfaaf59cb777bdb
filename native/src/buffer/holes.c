/* SPDX-License-Identifier: MIT */
/*
 * Holes. The memory of a discarded record cannot be used for another one, because later records lie behind it. Its
 * producer stores a struct relay_hole there, links it into the list of the sub-buffer, and then frees its claim. So a
 * reader that does not find the claim any more finds the hole.
 *
 *     relay_subbuf.holes ────────────────────────v
 *     |aaaa|HOLE next=0|bb|HOLE next, length, ...|cccc|
 *              ^─────────────'
 *
 * Readers collect the list in an array (struct relay_holes) and sort it, to find the next hole after any position. The
 * list grows only at its head; so when it has grown, readers collect only the holes before the one that was the head.
 * The array is sorted in runs of RUN holes, because to sort the whole may take longer than a call of a file server
 * should. For the same reason one call collects at most COLLECT_MOST holes. The list is in memory to which other users
 * may write, so each element is checked.
 */
#define _GNU_SOURCE
#include "buffer/holes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
	RUN = 4096,           /* holes that are sorted together */
	COLLECT_MOST = 16384, /* in one call */
	COLLECT_UNITS = 4     /* units of RELAY_WORK for each hole */
};

static uint64_t *list_of(const struct rchan_buf *buf, uint64_t pos)
{
	return &relay_pos_entry(buf, pos)->holes;
}

static bool is_of(const struct rchan_buf *buf, uint64_t list, uint64_t pos)
{
	return list & RELAY_HOLES && relay_pos_number(buf, list) == relay_pos_number(buf, pos);
}

/* The hole at `offset` in pos's sub-buffer; zeros if the bytes there cannot be a hole. */
static struct relay_hole hole_at(const struct rchan_buf *buf, uint64_t pos, uint64_t offset)
{
	struct relay_hole hole = {0};
	if (offset + sizeof(hole) <= buf->subbuf_size) {
		memcpy(&hole, buf->data + relay_pos_index(buf, pos) * buf->subbuf_size + offset, sizeof(hole));
		if (hole.length < sizeof(hole) || hole.length > buf->subbuf_size - offset)
			hole = (struct relay_hole){0};
	}
	return hole;
}

bool relay_hole_push(struct rchan_buf *buf, uint64_t pos, uint64_t length, uint32_t record)
{
	/* Pairs with the release below: the head of the list is loaded after it was stored. */
	uint64_t *list = list_of(buf, pos), old = __atomic_load_n(list, __ATOMIC_ACQUIRE);
	if (length < sizeof(struct relay_hole))
		return false;
	for (;;) {
		struct relay_hole hole = {.length = (uint32_t)length, .record = record, .count = 1};
		if (is_of(buf, old, pos)) {
			uint64_t offset = relay_pos_offset(buf, old);
			hole.count = hole_at(buf, pos, offset).count + 1;
			hole.next = (uint32_t)offset + 1;
		}
		if (hole.count > RELAY_N_HOLES)
			return false;
		memcpy(relay_pos_data(buf, pos), &hole, sizeof(hole));
		/* Pairs with the acquires above and in relay_holes_first(): the hole before the list's head. */
		if (__atomic_compare_exchange_n(list, &old, RELAY_HOLES | pos, true, __ATOMIC_ACQ_REL,
		                                __ATOMIC_ACQUIRE))
			break;
	}
	relay_count_hole(buf, 1);
	return true;
}

static int by_offset(const void *left, const void *right)
{
	uint32_t a = ((const struct relay_found_hole *)left)->offset;
	uint32_t b = ((const struct relay_found_hole *)right)->offset;
	return (a > b) - (a < b);
}

/* The list gives the latest hole first, which mostly has the largest offset. */
static void reverse(struct relay_found_hole *at, uint32_t n)
{
	for (uint32_t i = 0; i < n / 2; i++) {
		struct relay_found_hole other = at[n - 1 - i];
		at[n - 1 - i] = at[i];
		at[i] = other;
	}
}

static bool is_sorted(const struct relay_found_hole *at, uint32_t n)
{
	for (uint32_t i = 1; i < n; i++)
		if (at[i - 1].offset > at[i].offset)
			return false;
	return true;
}

/* Sort the runs to which holes from index `from` on were added. */
static void sort_runs(struct relay_holes *holes, uint32_t from)
{
	reverse(holes->at + from, holes->n - from);
	for (uint32_t run = from / RUN * RUN; run < holes->n; run += RUN) {
		uint32_t n = holes->n - run < RUN ? holes->n - run : RUN;
		if (!is_sorted(holes->at + run, n))
			qsort(holes->at + run, n, sizeof(*holes->at), by_offset);
	}
}

/* Begin to collect `list`. The holes collected before are kept if it is probably the same list, which has grown. */
static void begin_list(struct relay_holes *holes, const struct rchan_buf *buf, uint64_t list, uint32_t resets)
{
	/* After a reset, the same positions are used again, so `resets` is compared, too. */
	bool same = resets == holes->resets && !holes->next && holes->n && is_of(buf, holes->list, list);
	holes->until = same ? (uint32_t)relay_pos_offset(buf, holes->list) + 1 : 0;
	if (!same)
		holes->n = 0;
	holes->list = list;
	holes->resets = resets;
	holes->next = (uint32_t)relay_pos_offset(buf, list) + 1;
	holes->left = 0;
	holes->is_used = false;
}

/* Collect the next hole of the list. Returns false if it was the last one to collect. */
static bool collect_one(const struct rchan_buf *buf, struct relay_holes *holes)
{
	uint32_t offset = holes->next - 1;
	struct relay_hole hole = hole_at(buf, holes->list, offset);
	/* Each hole has the length of the list from there on, so that a damaged list cannot be followed for ever. */
	bool fits = hole.length && hole.count && (!holes->left || hole.count == holes->left);
	if (!fits || holes->n == RELAY_N_HOLES) {
		holes->next = 0;
	} else {
		holes->at[holes->n++] = (struct relay_found_hole){offset, hole.length, hole.record};
		holes->left = hole.count - 1;
		holes->next = holes->left ? hole.next : 0;
	}
	return holes->next && holes->next != holes->until;
}

/* Continue to collect. Returns 0 if the end of the list was reached or the list has to be collected
 * anew; otherwise -EINPROGRESS. */
static int collect(struct rchan_buf *buf, struct relay_holes *holes)
{
	uint32_t from = holes->n;
	bool more = true;
	relay_holes_touch(holes);
	for (uint32_t i = 0; more && i < COLLECT_MOST; i++) {
		if (holes->n == holes->capacity && holes->n < RELAY_N_HOLES && !relay_holes_grow(buf, holes)) {
			/* relay_holes_grow() has emptied the list, so the next call begins anew. */
			relay_work_add(buf, COLLECT_UNITS * (1 + i));
			return -EINPROGRESS;
		}
		more = collect_one(buf, holes);
	}
	sort_runs(holes, from);
	relay_work_add(buf, COLLECT_UNITS * (1 + holes->n - from));
	if (more)
		return -EINPROGRESS;
	if (holes->until && holes->next != holes->until) {
		/* The list does not contain the hole that was its head before: it is another
		 * list, to be collected anew. */
		holes->n = holes->left = holes->until = 0;
		holes->next = (uint32_t)relay_pos_offset(buf, holes->list) + 1;
		return 0;
	}
	holes->next = 0;
	return 0;
}

/* The first hole at or after `offset` in one sorted run that has such a hole. */
static const struct relay_found_hole *first_in_run(const struct relay_found_hole *at, uint32_t n, uint64_t offset)
{
	uint32_t low = 0, high = n;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		if (at[middle].offset < offset)
			low = middle + 1;
		else
			high = middle;
	}
	return &at[low];
}

static const struct relay_found_hole *first_at(struct rchan_buf *buf, const struct relay_holes *holes, uint64_t offset)
{
	const struct relay_found_hole *first = NULL;
	for (uint32_t run = 0; run < holes->n; run += RUN) {
		const struct relay_found_hole *at = holes->at + run;
		uint32_t n = holes->n - run < RUN ? holes->n - run : RUN;
		if (at[n - 1].offset < offset || (first && at[0].offset >= first->offset))
			continue;
		const struct relay_found_hole *found = first_in_run(at, n, offset);
		if (!first || found->offset < first->offset)
			first = found;
	}
	relay_work_add(buf, holes->n / RUN / 8);
	return first;
}

int relay_holes_first(struct rchan_buf *buf, struct relay_holes *holes, uint64_t pos,
                      const struct relay_found_hole **hole)
{
	*hole = NULL;
	for (;;) {
		/* Pairs with the release in relay_hole_push(): the holes before the list's head. */
		uint64_t list = __atomic_load_n(list_of(buf, pos), __ATOMIC_ACQUIRE);
		if (__builtin_expect(!is_of(buf, list, pos), 1))
			return 0;
		/* Relaxed: if a reset is under way, the caller finds that out later and tries again. */
		uint32_t resets = __atomic_load_n(&buf->control->resets, __ATOMIC_RELAXED);
		bool same_list = list == holes->list && resets == holes->resets;
		if (same_list && !holes->next)
			break;
		/* A collection that has begun is completed first, even if the list has grown meanwhile. */
		if (!holes->next || resets != holes->resets || !is_of(buf, holes->list, pos))
			begin_list(holes, buf, list, resets);
		if (collect(buf, holes) || !buf->work)
			return -EINPROGRESS;
	}
	relay_holes_touch(holes);
	*hole = first_at(buf, holes, relay_pos_offset(buf, pos));
	holes->is_used |= !*hole;
	return 0;
}

void relay_holes_clear(struct rchan_buf *buf)
{
	/* Relaxed: start_again() in buffer/control.c publishes it. */
	for (uint64_t i = 0; i < 2 * buf->n_subbufs; i++)
		__atomic_store_n(&buf->subbufs[i].holes, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&buf->control->n_holes, 0, __ATOMIC_RELAXED);
}
