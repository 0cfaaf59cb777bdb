/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "trace/event_copy.h"

#include "trace/field_types.h"

#include <string.h>

/* What is copied lies in this order in the memory; `at` is where the next one of each kind is put. */
struct room {
	struct relay_trace_field *fields;
	struct relay_trace_enum *enums;
	struct relay_trace_label *labels;
	char *text;
};

static const char *file_of(const struct relay_trace_event *event)
{
	return event->has_place ? event->file : NULL;
}

size_t relay_event_copy_bytes(const struct relay_trace_event *event)
{
	const char *file = file_of(event);
	size_t bytes = event->n_fields * sizeof(struct relay_trace_field) +
	               relay_event_n_enums(event) * sizeof(struct relay_trace_enum) + strlen(event->provider) + 1 +
	               strlen(event->name) + 1 + (file ? strlen(file) + 1 : 0);
	for (uint32_t i = 0; i < event->n_fields; i++)
		bytes += strlen(event->fields[i].name) + 1;
	for (uint32_t i = 0; i < relay_event_n_enums(event); i++) {
		const struct relay_trace_enum *one = &event->enums[i];
		bytes += strlen(one->field) + 1;
		for (uint32_t k = 0; k < one->n_labels; k++)
			bytes += sizeof(struct relay_trace_label) + strlen(one->labels[k].name) + 1;
	}
	return bytes;
}

static const char *copy_text(struct room *room, const char *text)
{
	char *copy = room->text;
	room->text = stpcpy(copy, text) + 1;
	return copy;
}

static struct relay_trace_enum copy_enum(struct room *room, const struct relay_trace_enum *from)
{
	struct relay_trace_label *labels = room->labels;
	room->labels += from->n_labels;
	for (uint32_t i = 0; i < from->n_labels; i++)
		labels[i] = (struct relay_trace_label){copy_text(room, from->labels[i].name), from->labels[i].value};
	return (struct relay_trace_enum){copy_text(room, from->field), labels, from->n_labels};
}

void relay_event_copy(struct relay_trace_event *to, void *room, const struct relay_trace_event *event)
{
	const uint32_t n_enums = relay_event_n_enums(event);
	struct room at = {.fields = room};
	at.enums = (struct relay_trace_enum *)(at.fields + event->n_fields);
	at.labels = (struct relay_trace_label *)(at.enums + n_enums);
	size_t n_labels = 0;
	for (uint32_t i = 0; i < n_enums; i++)
		n_labels += event->enums[i].n_labels;
	at.text = (char *)(at.labels + n_labels);
	*to = (struct relay_trace_event){
	    .provider = copy_text(&at, event->provider),
	    .name = copy_text(&at, event->name),
	    .fields = at.fields,
	    .n_fields = event->n_fields,
	    .level = event->level,
	    .has_place = 2,
	    .file = file_of(event) ? copy_text(&at, event->file) : NULL,
	    .line = file_of(event) ? event->line : 0,
	    .n_enums = n_enums,
	    .enums = at.enums,
	};
	for (uint32_t i = 0; i < event->n_fields; i++)
		at.fields[i] = (struct relay_trace_field){copy_text(&at, event->fields[i].name), event->fields[i].type};
	for (uint32_t i = 0; i < n_enums; i++)
		at.enums[i] = copy_enum(&at, &event->enums[i]);
}
