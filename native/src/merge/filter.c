/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "merge/filter.h"

#include "merge/grown.h"
#include "trace/condition.h"

#include <errno.h>

/* The comparisons of the condition with the fields of one declared event. */
struct resolved {
	uint16_t first; /* as relay_condition_resolve() returns it */
	uint16_t n;
	struct relay_comparison comparisons[];
};

struct relay_filter {
	const struct relay_conditions *conditions;
	struct resolved **of; /* n of them, by event id; NULL: no event of this id was evaluated yet */
	size_t n;
};

struct relay_filter *relay_filter_new(const struct relay_conditions *conditions)
{
	struct relay_filter *filter = calloc(1, sizeof(*filter));
	if (filter)
		filter->conditions = conditions;
	return filter;
}

void relay_filter_free(struct relay_filter *filter)
{
	if (!filter)
		return;
	for (size_t id = 0; id < filter->n; id++) {
		if (filter->of[id])
			relay_comparisons_clear(filter->of[id]->comparisons, filter->of[id]->n);
		free(filter->of[id]);
	}
	free(filter->of);
	free(filter);
}

/* Return the comparisons for an event; they are made at its first occurrence. NULL: no memory. */
static const struct resolved *resolve(struct relay_filter *filter, uint64_t id, const struct relay_trace_event *event)
{
	struct resolved **of = relay_grown(filter->of, &filter->n, id, sizeof(*of));
	if (!of)
		return NULL;
	filter->of = of;
	/* The declaration of an id does not change while the process is in the merge. */
	struct resolved *resolved = filter->of[id];
	if (resolved)
		return resolved;
	const size_t n = relay_condition_length(filter->conditions, 0);
	resolved = calloc(1, sizeof(*resolved) + n * sizeof(struct relay_comparison));
	if (resolved)
		resolved->first =
		    relay_condition_resolve(filter->conditions, 0, event, resolved->comparisons, &resolved->n);
	filter->of[id] = resolved;
	return resolved;
}

int relay_filter_takes(struct relay_filter *filter, const struct relay_event_cursor *cursor)
{
	const struct resolved *resolved = resolve(filter, cursor->id, cursor->layout->event);
	if (!resolved)
		return -ENOMEM;
	const unsigned char *fields = cursor->context + cursor->layouts->context_bytes;
	return relay_condition_takes(resolved->comparisons, resolved->first, fields, cursor->at);
}
