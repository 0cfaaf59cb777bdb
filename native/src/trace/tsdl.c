/* SPDX-License-Identifier: MIT */
/*
 * event {
 *         name = "server:request";
 *         id = 0;
 *         stream_id = 0;
 *         loglevel = 6;                                          if the event has a level
 *         model.emf.uri = "src/server.c:12";                     the place of the declaration, if it is known
 *         fields := struct {
 *                 uint32_t _id;                                  readers remove the first underscore, so that a field
 *                 string { encoding = UTF8; } _path;             may have the name of a keyword
 *                 uint32_t __body_length; xint8_t _body[__body_length];
 *                 uint16_t _port[2];                             an array
 *                 uint32_t __ns_length; int64_t _ns[__ns_length];        a sequence
 *                 enum : uint8_t { "idle" = 0, "busy" = 1 } _state;
 *         };
 * };
 *
 * The types are declared by who writes the rest of the metadata (relayfs_fuse/tracefiles/ctf.py).
 */
#define _GNU_SOURCE
#include "trace/tsdl.h"

#include "trace/field_types.h"

#include <ctype.h>
#include <relayfs/trace_store.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { FIELDS_THAT_FIT = 32, FILE_BYTES = 255 };

static bool is_name(const char *name, const char *further)
{
	if (!name || !*name || strlen(name) > RELAY_NAME_MAX)
		return false;
	for (; *name; name++)
		if (!isalnum((unsigned char)*name) && *name != '_' && !strchr(further, *name))
			return false;
	return true;
}

static bool has_two(const struct relay_trace_event *event, uint32_t field)
{
	for (uint32_t i = 0; i < field; i++)
		if (strcmp(event->fields[i].name, event->fields[field].name) == 0)
			return true;
	return false;
}

static bool holds(const struct relay_field_type *type, int64_t value)
{
	const uint32_t bits = 8 * type->bytes;
	if (bits == 64)
		return true;
	if (type->kind == RELAY_FIELD_SIGNED)
		return value >= -(1ll << (bits - 1)) && value < 1ll << (bits - 1);
	return value >= 0 && value < 1ll << bits;
}

static bool allows_labels(const struct relay_trace_enum *labels, const struct relay_field_type *type)
{
	if (!labels || labels->n_labels == 0 || labels->n_labels > RELAY_LABELS_MAX)
		return false;
	for (uint32_t i = 0; i < labels->n_labels; i++) {
		if (!is_name(labels->labels[i].name, "") || !holds(type, labels->labels[i].value))
			return false;
		for (uint32_t k = 0; k < i; k++)
			if (strcmp(labels->labels[k].name, labels->labels[i].name) == 0)
				return false;
	}
	return true;
}

static bool allows_field(const struct relay_trace_event *event, uint32_t i)
{
	const struct relay_trace_field *field = &event->fields[i];
	if (!relay_field_is_sound(field->type) || !is_name(field->name, "") || has_two(event, i))
		return false;
	return !(field->type & RELAY_TRACE_IS_ENUM) ||
	       allows_labels(relay_field_enum(event, field->name), relay_field_base(field->type));
}

bool relay_tsdl_allows(const struct relay_trace_event *event)
{
	if (!is_name(event->provider, ".") || !is_name(event->name, "") || event->n_fields > RELAY_FIELDS_MAX ||
	    event->level > RELAY_N_TRACE_LEVELS)
		return false;
	for (uint32_t i = 0; i < event->n_fields; i++)
		if (!allows_field(event, i))
			return false;
	/* Fewer fields fit, whatever their names are; to format each event's declaration once more would delay programs that start. */
	const bool fits = event->n_fields <= FIELDS_THAT_FIT && !relay_event_n_enums(event);
	return fits || relay_tsdl_event(event, RELAY_TRACE_ID_MAX, NULL, 0) < RELAY_DECLARATION_BYTES;
}

struct text {
	char *at;
	size_t size, length;
};

__attribute__((format(printf, 2, 3))) static void add(struct text *text, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	bool fits = text->length < text->size;
	int n = vsnprintf(fits ? text->at + text->length : NULL, fits ? text->size - text->length : 0, format, args);
	va_end(args);
	text->length += n > 0 ? (size_t)n : 0;
}

/* Of a path that is too long, the end is kept, because it has the file's name. */
static void add_place(struct text *text, const struct relay_trace_event *event)
{
	size_t length = strlen(event->file);
	const char *at = event->file + (length > FILE_BYTES ? length - FILE_BYTES : 0);
	add(text, "\tmodel.emf.uri = \"");
	for (; *at; at++)
		add(text, "%c", *at >= ' ' && *at <= '~' && *at != '"' && *at != '\\' ? *at : '_');
	add(text, ":%u\";\n", event->line);
}

static void add_template(struct text *text, const char *template, const char *name)
{
	for (const char *at = template; *at; at++)
		if (*at == '$')
			add(text, "%s", name);
		else
			add(text, "%c", *at);
}

static void add_enum(struct text *text, const struct relay_trace_enum *labels, bool is_signed)
{
	for (uint32_t i = 0; i < labels->n_labels; i++) {
		const struct relay_trace_label *label = &labels->labels[i];
		add(text, is_signed ? "%s\"%s\" = %lld" : "%s\"%s\" = %llu", i ? ", " : " ", label->name,
		    (long long)label->value);
	}
}

static void add_field(struct text *text, const struct relay_trace_event *event, const struct relay_trace_field *field)
{
	const struct relay_field_type *type = relay_field_base(field->type);
	const int word = (int)strcspn(type->tsdl, " "); /* its name in TSDL */
	add(text, "\t\t");
	if (field->type & RELAY_TRACE_IS_ENUM) {
		add(text, "enum : %.*s {", word, type->tsdl);
		add_enum(text, relay_field_enum(event, field->name), type->kind == RELAY_FIELD_SIGNED);
		add(text, " } _%s;", field->name);
	} else if (field->type & RELAY_TRACE_IS_SEQUENCE) {
		add(text, "uint32_t __%s_length;\n\t\t", field->name);
		add(text, "%.*s _%s[__%s_length];", word, type->tsdl, field->name, field->name);
	} else if (relay_field_count(field->type)) {
		add(text, "%.*s _%s[%u];", word, type->tsdl, field->name, relay_field_count(field->type));
	} else {
		add_template(text, type->tsdl, field->name);
	}
	add(text, "\n");
}

size_t relay_tsdl_event(const struct relay_trace_event *event, uint64_t id, char *at, size_t size)
{
	struct text text = {at, size, 0};
	add(&text, "event {\n\tname = \"%s:%s\";\n\tid = %llu;\n\tstream_id = 0;\n", event->provider, event->name,
	    (unsigned long long)id);
	if (event->level)
		add(&text, "\tloglevel = %u;\n", event->level - 1u);
	if (event->has_place && event->file)
		add_place(&text, event);
	add(&text, "\tfields := struct {\n");
	for (uint32_t i = 0; i < event->n_fields; i++)
		add_field(&text, event, &event->fields[i]);
	add(&text, "\t};\n};\n");
	return text.length;
}
