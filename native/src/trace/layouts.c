/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "trace/layouts.h"

#include "trace/event_copy.h"
#include "trace/field_types.h"

#include <errno.h>
#include <stdlib.h>

enum { N_TYPES_MAX = 65536 }; /* fields of an event */

struct relay_layouts *relay_layouts_new(uint32_t context_bytes)
{
	struct relay_layouts *layouts = calloc(1, sizeof(*layouts));
	if (layouts)
		layouts->context_bytes = context_bytes;
	return layouts;
}

void relay_layouts_free(struct relay_layouts *layouts)
{
	for (size_t i = 0; layouts && i < layouts->n; i++) {
		free(layouts->at[i].steps);
		free(layouts->at[i].event);
	}
	if (layouts)
		free(layouts->at);
	free(layouts);
}

/* Return the index of the layout of an id, or the index at which it would be inserted. */
static size_t index_of(const struct relay_layouts *layouts, uint64_t id)
{
	size_t low = 0, high = layouts->n;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if (layouts->at[middle].id < id)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

const struct relay_event_layout *relay_find_layout(const struct relay_layouts *layouts, uint64_t id)
{
	/* The index is the id if the process has declared the ids 0, 1, 2 ..., as most do. */
	size_t i = id < layouts->n && layouts->at[id].id == id ? id : index_of(layouts, id);
	return i < layouts->n && layouts->at[i].id == id ? &layouts->at[i] : NULL;
}

void relay_steps_fill(struct relay_step *steps, const uint32_t *types, uint32_t n_types, uint32_t bytes)
{
	uint32_t n = 0;
	memset(steps, 0, ((size_t)n_types + 1) * sizeof(*steps));
	steps[0].bytes = bytes;
	for (uint32_t i = 0; i < n_types; i++) {
		const struct relay_field_type *type = relay_field_base(types[i]);
		const uint32_t count = relay_field_count(types[i]);
		const bool is_sequence = types[i] & RELAY_TRACE_IS_SEQUENCE || type->kind == RELAY_FIELD_BYTES;
		if (!is_sequence && type->bytes) {
			steps[n].bytes += type->bytes * (count ? count : 1);
			continue;
		}
		steps[n].end = is_sequence ? RELAY_SEQUENCE_FOLLOWS : RELAY_STRING_FOLLOWS;
		steps[n++].each = (uint16_t)(type->bytes ? type->bytes : 1);
	}
	steps[n].end = RELAY_EVENT_ENDS;
}

struct relay_step *relay_steps_make(const uint32_t *types, uint32_t n_types, uint32_t bytes)
{
	struct relay_step *steps = calloc((size_t)n_types + 1, sizeof(*steps));
	if (steps)
		relay_steps_fill(steps, types, n_types, bytes);
	return steps;
}

static int make_room(struct relay_layouts *layouts)
{
	size_t capacity = layouts->capacity ? 2 * layouts->capacity : 16;
	if (layouts->n < layouts->capacity)
		return 0;
	struct relay_event_layout *more = reallocarray(layouts->at, capacity, sizeof(*more));
	if (!more)
		return -ENOMEM;
	layouts->at = more;
	layouts->capacity = capacity;
	return 0;
}

static bool has_structs(const struct relay_trace_event *event)
{
	for (uint32_t i = 0; i < event->n_fields; i++)
		if (strchr(event->fields[i].name, '.'))
			return true;
	return false;
}

/* event: NULL or a copy, which belongs to the layouts on success. */
static int add(struct relay_layouts *layouts, uint64_t id, const uint32_t *types, uint32_t n_types,
               struct relay_trace_event *event)
{
	uint64_t bytes = layouts->context_bytes;
	if (n_types > N_TYPES_MAX)
		return -EINVAL;
	for (uint32_t i = 0; i < n_types; i++) {
		if (!relay_field_is_sound(types[i]))
			return -EINVAL;
		bytes += (uint64_t)relay_field_base(types[i])->bytes * relay_field_count(types[i]);
	}
	if (bytes > RELAY_TRACE_EVENT_MAX)
		return -EINVAL;
	if (relay_find_layout(layouts, id))
		return -EEXIST;
	int err = make_room(layouts);
	struct relay_step *steps = err ? NULL : relay_steps_make(types, n_types, layouts->context_bytes);
	if (!steps)
		return -ENOMEM;
	size_t i = index_of(layouts, id);
	memmove(&layouts->at[i + 1], &layouts->at[i], (layouts->n - i) * sizeof(*layouts->at));
	layouts->at[i] = (struct relay_event_layout){id, steps, event, event && has_structs(event)};
	layouts->n++;
	return 0;
}

int relay_layouts_add(struct relay_layouts *layouts, uint64_t id, const uint32_t *types, uint32_t n_types)
{
	return add(layouts, id, types, n_types, NULL);
}

/* Return a copy of an event in one allocation: the event, its fields, all names. NULL: no memory. */
static struct relay_trace_event *new_copy_of(const struct relay_trace_event *event)
{
	struct relay_trace_event *copy = malloc(sizeof(*copy) + relay_event_copy_bytes(event));
	if (copy)
		relay_event_copy(copy, copy + 1, event);
	return copy;
}

int relay_layouts_declare(struct relay_layouts *layouts, uint64_t id, const struct relay_trace_event *event)
{
	if (event->n_fields > N_TYPES_MAX)
		return -EINVAL;
	for (uint32_t i = 0; i < event->n_fields; i++)
		if (relay_field_depth(event->fields[i].name) > RELAY_TRACE_DEPTH_MAX)
			return -EINVAL;
	uint32_t *types = calloc((size_t)event->n_fields + 1, sizeof(*types));
	struct relay_trace_event *copy = types ? new_copy_of(event) : NULL;
	for (uint32_t i = 0; copy && i < event->n_fields; i++)
		types[i] = event->fields[i].type;
	int err = copy ? add(layouts, id, types, event->n_fields, copy) : -ENOMEM;
	free(types);
	if (err)
		free(copy);
	return err;
}
