/* SPDX-License-Identifier: MIT */
#include "trace/flat.h"

#include "trace/tsdl.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A flat event, and the memory for all that it points to but texts of the original. */
struct flat {
	struct relay_trace_event event;
	struct relay_trace_field fields[RELAY_FIELDS_MAX];
	struct relay_trace_enum enums[RELAY_FIELDS_MAX];
	char names[RELAY_FIELDS_MAX][RELAY_NAME_MAX + 1];
};

/* Return the labels of a field. NULL: it has none. */
static const struct relay_trace_enum *find_enum(const struct relay_trace_members *members, const char *field)
{
	for (uint32_t i = 0; i < members->n_enums; i++)
		if (strcmp(members->enums[i].field, field) == 0)
			return &members->enums[i];
	return NULL;
}

/* Append a field of `members` under this name. false: there are RELAY_FIELDS_MAX fields already. */
static bool append_field(struct flat *flat, const char *name, const struct relay_trace_field *field,
                         const struct relay_trace_members *members)
{
	const uint32_t n = flat->event.n_fields;
	if (n == RELAY_FIELDS_MAX)
		return false;
	memcpy(flat->names[n], name, strlen(name) + 1);
	flat->fields[n] = (struct relay_trace_field){flat->names[n], field->type};
	flat->event.n_fields++;
	const struct relay_trace_enum *labels = find_enum(members, field->name);
	if (labels)
		flat->enums[flat->event.n_enums++] =
		    (struct relay_trace_enum){flat->names[n], labels->labels, labels->n_labels};
	return true;
}

/* Append all fields of an event or a struct, and of the structs in it. before: begins their names; depth: the number of
 * structs that they are in. false: for the reasons given at relay_event_flat(). */
static bool append_all(struct flat *flat, const struct relay_trace_members *from, const char *before, uint32_t depth)
{
	const struct relay_trace_members *const *structs = from->structs;
	char name[RELAY_NAME_MAX + 1];
	for (uint32_t i = 0; i < from->n_fields; i++) {
		const struct relay_trace_field *field = &from->fields[i];
		const bool is_struct = field->type == RELAY_TRACE_IS_STRUCT;
		const int length = snprintf(name, sizeof(name), "%s%s%s", before, field->name, is_struct ? "." : "");
		bool fits = length < (int)sizeof(name);
		if (is_struct)
			fits = fits && depth < RELAY_TRACE_DEPTH_MAX && append_all(flat, *structs++, name, depth + 1);
		else
			fits = fits && append_field(flat, name, field, from);
		if (!fits)
			return false;
	}
	return true;
}

struct relay_trace_event *relay_event_flat(const struct relay_trace_event *event)
{
	const struct relay_trace_members members = {event->fields, event->enums, event->structs, event->n_fields,
	                                            event->n_enums};
	struct flat *flat = malloc(sizeof(*flat));
	if (!flat)
		return NULL;
	flat->event = *event;
	flat->event.fields = flat->fields;
	flat->event.enums = flat->enums;
	flat->event.structs = NULL;
	flat->event.n_fields = flat->event.n_enums = 0;
	flat->event.has_place = 2;
	if (append_all(flat, &members, "", 0))
		return &flat->event;
	free(flat);
	return NULL;
}
