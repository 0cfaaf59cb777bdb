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
 *         };
 * };
 *
 * The types are declared by who writes the rest of the metadata (relayfs_fuse/tracefiles/ctf.py).
 */
#define _GNU_SOURCE
#include "trace/tsdl.h"

#include "trace/field_types.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = 127, MOST_FIELDS = 64, FILE_BYTES = 255 };

static bool is_name(const char *name, const char *further)
{
	if (!name || !*name || strlen(name) > NAME_BYTES)
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

bool relay_tsdl_allows(const struct relay_trace_event *event)
{
	if (!is_name(event->provider, ".") || !is_name(event->name, "") || event->n_fields > MOST_FIELDS ||
	    event->level > RELAY_N_TRACE_LEVELS)
		return false;
	for (uint32_t i = 0; i < event->n_fields; i++)
		if (event->fields[i].type >= RELAY_N_TRACE_TYPES || !is_name(event->fields[i].name, "") ||
		    has_two(event, i))
			return false;
	return true;
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

static void add_field(struct text *text, const struct relay_trace_field *field)
{
	add(text, "\t\t");
	for (const char *at = relay_field_types[field->type].tsdl; *at; at++)
		if (*at == '$')
			add(text, "%s", field->name);
		else
			add(text, "%c", *at);
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
		add_field(&text, &event->fields[i]);
	add(&text, "\t};\n};\n");
	return text.length;
}
