/* SPDX-License-Identifier: MIT */
#include "merge/filter.h"

#include "trace/condition.h"

#include <errno.h>
#include <stdlib.h>

enum { N_IDS = UINT16_MAX + 1 };

/* The condition, for the fields of one event. */
struct resolved {
	uint16_t first; /* as relay_condition_resolve() returns it */
	uint16_t n;
	struct relay_comparison comparisons[];
};

struct relay_filter {
	const struct relay_conditions *conditions;
	struct resolved *of[N_IDS]; /* by an event's id; NULL: the event did not occur so far */
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
	for (size_t id = 0; filter && id < N_IDS; id++) {
		if (filter->of[id])
			relay_comparisons_clear(filter->of[id]->comparisons, filter->of[id]->n);
		free(filter->of[id]);
	}
	free(filter);
}

/* NULL: no memory. */
static struct resolved *resolve(const struct relay_conditions *conditions, const struct relay_trace_event *event)
{
	const size_t n = relay_condition_length(conditions, 0);
	struct resolved *resolved = calloc(1, sizeof(*resolved) + n * sizeof(struct relay_comparison));
	if (resolved)
		resolved->first = relay_condition_resolve(conditions, 0, event, resolved->comparisons, &resolved->n);
	return resolved;
}

int relay_filter_takes(struct relay_filter *filter, const struct relay_event_cursor *cursor)
{
	/* An id stands for the same declaration as long as the process is merged. */
	struct resolved **resolved = &filter->of[cursor->id];
	if (!*resolved)
		*resolved = resolve(filter->conditions, cursor->layout->event);
	if (!*resolved)
		return -ENOMEM;
	const unsigned char *fields = cursor->context + cursor->layouts->context_bytes;
	return relay_condition_takes((*resolved)->comparisons, (*resolved)->first, fields, cursor->at);
}
