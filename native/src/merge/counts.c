/* SPDX-License-Identifier: MIT */
/* Counting the events that a merge returns, by process and id. */
#define _GNU_SOURCE
#include "merge/merge.h"

#include <errno.h>
#include <stdlib.h>

struct relay_counts {
	struct relay_merge *merge;
	struct relay_merge_count *at; /* a hash table of `capacity` places, a power of two; .n is 0 where one is free */
	size_t capacity, n;
	size_t n_told; /* places that relay_counts_next() has passed */
};

struct relay_counts *relay_counts_new(struct relay_merge *merge)
{
	struct relay_counts *counts = calloc(1, sizeof(*counts));
	if (counts)
		counts->merge = merge;
	return counts;
}

void relay_counts_free(struct relay_counts *counts)
{
	if (!counts)
		return;
	free(counts->at);
	free(counts);
}

/* The place of this process and id, or the free one that it gets. The table has a free place. */
static struct relay_merge_count *place_of(const struct relay_counts *counts, uint32_t identity, uint32_t id)
{
	const uint64_t key = (uint64_t)identity << 32 | id;
	size_t place = (size_t)((key * 0x9e3779b97f4a7c15u) >> 32);
	for (;; place++) {
		struct relay_merge_count *count = &counts->at[place & (counts->capacity - 1)];
		if (!count->n || (count->identity == identity && count->id == id))
			return count;
	}
}

/* Keep half of the table free. false: no memory. */
static bool make_room(struct relay_counts *counts)
{
	if (2 * counts->n < counts->capacity)
		return true;
	struct relay_counts larger = {.capacity = counts->capacity ? 2 * counts->capacity : 64};
	larger.at = calloc(larger.capacity, sizeof(*larger.at));
	if (!larger.at)
		return false;
	for (size_t i = 0; i < counts->capacity; i++)
		if (counts->at[i].n)
			*place_of(&larger, counts->at[i].identity, counts->at[i].id) = counts->at[i];
	free(counts->at);
	counts->at = larger.at;
	counts->capacity = larger.capacity;
	return true;
}

int relay_counts_gather(struct relay_counts *counts)
{
	const struct relay_event *event;
	while (make_room(counts) && (event = relay_merge_next(counts->merge))) {
		if (event->lost)
			continue;
		const uint32_t identity = event->stream->traced->identity, id = (uint32_t)event->stream->cursor.id;
		struct relay_merge_count *count = place_of(counts, identity, id);
		counts->n += !count->n;
		*count = (struct relay_merge_count){identity, id, count->n + 1};
	}
	return 2 * counts->n < counts->capacity ? 0 : -ENOMEM;
}

int relay_counts_next(struct relay_counts *counts, struct relay_merge_count *count)
{
	while (counts->n_told < counts->capacity) {
		*count = counts->at[counts->n_told++];
		if (count->n)
			return 1;
	}
	counts->n_told = 0;
	return 0;
}
