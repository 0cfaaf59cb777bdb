/* SPDX-License-Identifier: MIT */
/*
 * Holes. A discarded record stays where it was reserved, as nobody else's memory may move. Its producer links it
 * into the list of its sub-buffer, then lets its claim go: a reader that no longer meets the claim finds the hole.
 *
 *     ledger.holes ──────────────────────────────v
 *     |aaaa|HOLE next=0|bb|HOLE next, length, ...|cccc|
 *              ^─────────────'
 *
 * Readers sort what they find, once for each change of the list. What they find is data that anybody may have
 * scribbled on: each step is checked and their number is limited.
 */
#define _GNU_SOURCE
#include "holes.h"

#include <stdlib.h>
#include <string.h>

static uint64_t *list_of(const struct rchan_buf *buf, uint64_t pos)
{
	return &relay_pos_ledger(buf, pos)->holes;
}

static bool is_of(const struct rchan_buf *buf, uint64_t list, uint64_t pos)
{
	return list & RELAY_HOLES && relay_pos_number(buf, list) == relay_pos_number(buf, pos);
}

/* What is said at `offset` of pos's sub-buffer; zeros if that cannot be a hole. */
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
	/* Pairs with the release below: what the last one says of itself. */
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
		/* Pairs with the acquires above and in relay_holes_first(): what it says before that it is there. */
		if (__atomic_compare_exchange_n(list, &old, RELAY_HOLES | pos, true, __ATOMIC_ACQ_REL,
		                                __ATOMIC_ACQUIRE))
			break;
	}
	relay_count_hole(buf);
	return true;
}

static int by_offset(const void *left, const void *right)
{
	uint32_t a = ((const struct relay_found_hole *)left)->offset;
	uint32_t b = ((const struct relay_found_hole *)right)->offset;
	return (a > b) - (a < b);
}

static bool grow(struct relay_holes *holes)
{
	uint32_t capacity = holes->capacity ? 2 * holes->capacity : 64;
	void *at = realloc(holes->at, capacity * sizeof(*holes->at));
	if (!at)
		return false;
	holes->at = at;
	holes->capacity = capacity;
	return true;
}

static void find_all(struct rchan_buf *buf, uint64_t list, uint32_t resets)
{
	struct relay_holes *holes = &buf->holes;
	uint64_t offset = relay_pos_offset(buf, list);
	holes->list = list;
	holes->resets = resets;
	holes->n = 0;
	while (holes->n < RELAY_N_HOLES && (holes->n < holes->capacity || grow(holes))) {
		struct relay_hole hole = hole_at(buf, list, offset);
		if (!hole.length)
			break;
		holes->at[holes->n++] = (struct relay_found_hole){(uint32_t)offset, hole.length, hole.record};
		if (!hole.next)
			break;
		offset = hole.next - 1;
	}
	qsort(holes->at, holes->n, sizeof(*holes->at), by_offset);
}

const struct relay_found_hole *relay_holes_first(struct rchan_buf *buf, uint64_t pos)
{
	uint64_t list = __atomic_load_n(list_of(buf, pos), __ATOMIC_ACQUIRE);
	if (__builtin_expect(!is_of(buf, list, pos), 1))
		return NULL;
	const struct relay_holes *holes = &buf->holes;
	/* Positions come again after a reset. */
	uint32_t resets = __atomic_load_n(&buf->control->resets, __ATOMIC_RELAXED);
	if (list != holes->list || resets != holes->resets)
		find_all(buf, list, resets);
	uint32_t low = 0, high = holes->n;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		if (holes->at[middle].offset < relay_pos_offset(buf, pos))
			low = middle + 1;
		else
			high = middle;
	}
	return low < holes->n ? &holes->at[low] : NULL;
}

void relay_holes_clear(struct rchan_buf *buf)
{
	for (uint64_t i = 0; i < 2 * buf->n_subbufs; i++)
		__atomic_store_n(&buf->subbufs[i].holes, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&buf->control->n_holes, 0, __ATOMIC_RELAXED);
}
