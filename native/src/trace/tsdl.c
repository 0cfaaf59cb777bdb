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
 *                 struct {                                       the fields "at.x" and "at.y"
 *                         int32_t _x;
 *                         int32_t _y;
 *                 } _at;
 *         };
 * };
 *
 * xint8_t and the other types are declared in the preamble of the metadata, which relayfs_fuse/tracefiles/ctf.py writes.
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

/* True if the name of a field, after the names of its structs with a dot behind each, is allowed. */
static bool is_path(const char *name)
{
	return is_name(name, ".") && *name != '.' && name[strlen(name) - 1] != '.' && !strstr(name, "..") &&
	       relay_field_depth(name) <= RELAY_TRACE_DEPTH_MAX;
}

/* True if an earlier field, or a struct that has ended, has the name of this field, or of a struct that begins with it. */
static bool is_used(const struct relay_trace_event *event, uint32_t field)
{
	const char *name = event->fields[field].name;
	size_t length;
	relay_common_structs(field ? event->fields[field - 1].name : "", name, &length);
	do {
		length += strcspn(name + length, ".");
		for (uint32_t i = 0; i < field; i++) {
			const char *other = event->fields[i].name;
			if (strncmp(other, name, length) == 0 && (!other[length] || other[length] == '.'))
				return true;
		}
	} while (name[length++]);
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
	if (!relay_field_is_sound(field->type) || !is_path(field->name) || is_used(event, i))
		return false;
	return !(field->type & RELAY_TRACE_IS_ENUM) ||
	       allows_labels(relay_field_enum(event, field->name), relay_field_base(field->type));
}

bool relay_tsdl_allows(const struct relay_trace_event *event)
{
	bool has_structs = event->has_place > 2;
	if (!is_name(event->provider, ".") || !is_name(event->name, "") || event->n_fields > RELAY_FIELDS_MAX ||
	    event->level > RELAY_N_TRACE_LEVELS || has_structs)
		return false;
	for (uint32_t i = 0; i < event->n_fields; i++) {
		if (!allows_field(event, i))
			return false;
		has_structs = has_structs || strchr(event->fields[i].name, '.');
	}
	/* Fewer fields fit, whatever their names are; to format each event's declaration once more would delay programs that start. */
	const bool fits = event->n_fields <= FIELDS_THAT_FIT && !relay_event_n_enums(event) && !has_structs;
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

/* Append the indentation, beyond the first two tabs, of a line in `depth` structs. */
static void indent(struct text *text, uint32_t depth)
{
	for (; depth; depth--)
		add(text, "\t");
}

static void add_template(struct text *text, const char *template, const char *name, uint32_t depth)
{
	for (const char *at = template; *at; at++) {
		if (*at == '$')
			add(text, "%s", name);
		else
			add(text, "%c", *at);
		if (*at == '\n')
			indent(text, depth);
	}
}

static void add_enum(struct text *text, const struct relay_trace_enum *labels, bool is_signed)
{
	for (uint32_t i = 0; i < labels->n_labels; i++) {
		const struct relay_trace_label *label = &labels->labels[i];
		add(text, is_signed ? "%s\"%s\" = %lld" : "%s\"%s\" = %llu", i ? ", " : " ", label->name,
		    (long long)label->value);
	}
}

/* Begin the structs that the rest of a name, from `at` on, is in. depth: of the first of them. */
static void begin_structs(struct text *text, const char *at, uint32_t depth)
{
	for (; (at = strchr(at, '.')); at++) {
		add(text, "\t\t");
		indent(text, depth++);
		add(text, "struct {\n");
	}
}

/* End the structs that the field `name` is in, except the first `but` of them. */
static void end_structs(struct text *text, const char *name, uint32_t but)
{
	size_t ends[RELAY_TRACE_DEPTH_MAX + 1] = {0};
	uint32_t depth = 0;
	for (const char *at = name; (at = strchr(at, '.')); at++)
		ends[++depth] = (size_t)(at - name);
	for (; depth > but; depth--) {
		const size_t begin = depth > 1 ? ends[depth - 1] + 1 : 0;
		add(text, "\t\t");
		indent(text, depth - 1);
		add(text, "} _%.*s;\n", (int)(ends[depth] - begin), name + begin);
	}
}

static void add_field(struct text *text, const struct relay_trace_event *event, const struct relay_trace_field *field)
{
	const struct relay_field_type *type = relay_field_base(field->type);
	const int word = (int)strcspn(type->tsdl, " "); /* its name in TSDL */
	const uint32_t depth = relay_field_depth(field->name);
	const char *name = relay_field_own_name(field->name);
	add(text, "\t\t");
	indent(text, depth);
	if (field->type & RELAY_TRACE_IS_ENUM) {
		add(text, "enum : %.*s {", word, type->tsdl);
		add_enum(text, relay_field_enum(event, field->name), type->kind == RELAY_FIELD_SIGNED);
		add(text, " } _%s;", name);
	} else if (field->type & RELAY_TRACE_IS_SEQUENCE) {
		add(text, "uint32_t __%s_length;\n\t\t", name);
		indent(text, depth);
		add(text, "%.*s _%s[__%s_length];", word, type->tsdl, name, name);
	} else if (relay_field_count(field->type)) {
		add(text, "%.*s _%s[%u];", word, type->tsdl, name, relay_field_count(field->type));
	} else {
		add_template(text, type->tsdl, name, depth);
	}
	add(text, "\n");
}

static void add_fields(struct text *text, const struct relay_trace_event *event)
{
	const char *before = "";
	for (uint32_t i = 0; i < event->n_fields; i++) {
		const char *name = event->fields[i].name;
		size_t length;
		const uint32_t depth = relay_common_structs(before, name, &length);
		end_structs(text, before, depth);
		begin_structs(text, name + length, depth);
		add_field(text, event, &event->fields[i]);
		before = name;
	}
	end_structs(text, before, 0);
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
	add_fields(&text, event);
	add(&text, "\t};\n};\n");
	return text.length;
}
