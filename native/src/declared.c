/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "declared.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static bool is_same(const struct relay_trace_event *one, const struct relay_trace_event *other)
{
	bool same = one->n_fields == other->n_fields && strcmp(one->provider, other->provider) == 0 &&
	            strcmp(one->name, other->name) == 0;
	for (uint32_t i = 0; same && i < one->n_fields; i++)
		same = one->fields[i].type == other->fields[i].type &&
		       strcmp(one->fields[i].name, other->fields[i].name) == 0;
	return same;
}

struct relay_declared *relay_declared_find(struct relay_declared *list, const struct relay_trace_event *event)
{
	while (list && !is_same(&list->event, event))
		list = list->next;
	return list;
}

struct relay_declared *relay_declared_copy(const struct relay_trace_event *event)
{
	size_t bytes = sizeof(struct relay_declared) + event->n_fields * sizeof(struct relay_trace_field) +
	               strlen(event->provider) + strlen(event->name) + 2;
	for (uint32_t i = 0; i < event->n_fields; i++)
		bytes += strlen(event->fields[i].name) + 1;
	struct relay_declared *copy = calloc(1, bytes);
	if (!copy)
		return NULL;
	struct relay_trace_field *fields = (struct relay_trace_field *)(copy + 1);
	char *text = (char *)(fields + event->n_fields);
	copy->event = (struct relay_trace_event){.fields = fields, .n_fields = event->n_fields};
	copy->event.provider = text;
	text = stpcpy(text, event->provider) + 1;
	copy->event.name = text;
	text = stpcpy(text, event->name) + 1;
	for (uint32_t i = 0; i < event->n_fields; i++) {
		fields[i] = (struct relay_trace_field){text, event->fields[i].type};
		text = stpcpy(text, event->fields[i].name) + 1;
	}
	return copy;
}
