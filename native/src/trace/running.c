/* SPDX-License-Identifier: MIT */
/*
 * The declarations of a running program, read from its memory, because a program writes no file as long as no trace wants
 * one of its events. relay_traced_own (trace/objects.h) is found behind the mapping of the control file's first page.
 *
 * The program runs meanwhile, and may be hostile: any pointer may be wrong. So each struct and text is copied, and the copy
 * is checked as relay_trace_declare_event() checks an event. Events that cannot be read or are not valid are left out. The size
 * of the output limits the number of the others; MOST_POINTERS limits the length of lists, which may be circular, or have only
 * null pointers, or only events that are left out, which count as LEFT_OUT_COST pointers each.
 */
#define _GNU_SOURCE
#include "trace/field_types.h"
#include "trace/objects.h"
#include "trace/tsdl.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_POINTERS = 1 << 18, LEFT_OUT_COST = 1 << 8, NAME_BYTES = RELAY_NAME_MAX + 1, PLACE_BYTES = 4096 };

/* What is copied of one event takes less than eight times the room of the longest declaration: a label takes 24 bytes and
 * its name here, and at least 8 and its name there. */
enum { ROOM_BYTES = 8 * RELAY_DECLARATION_BYTES };

struct running {
	int memory;
	char *text; /* what is returned */
	size_t size, length;
	uint64_t n_events;
	uint32_t n_pointers; /* of all lists, so far, and LEFT_OUT_COST for each event that was left out */
	size_t used;         /* of `room` */
	_Alignas(max_align_t) char room[ROOM_BYTES];
};

/* --- copies --- */

static bool read_memory(const struct running *running, void *to, const void *from, size_t bytes)
{
	return pread(running->memory, to, bytes, (off_t)(uintptr_t)from) == (ssize_t)bytes;
}

/* Copy an array into the room. NULL: it cannot be read, or there is no room. */
static void *read_array(struct running *running, const void *from, size_t n, size_t bytes)
{
	void *to = running->room + running->used;
	if (n * bytes > sizeof(running->room) - running->used || !read_memory(running, to, from, n * bytes))
		return NULL;
	running->used += (n * bytes + sizeof(void *) - 1) / sizeof(void *) * sizeof(void *);
	return to;
}

/* Copy a text of less than `most` bytes into the room. There may be no memory behind the text. NULL: as read_array(), or the
 * text is longer. */
static char *read_text(struct running *running, const char *from, size_t most)
{
	char *to = running->room + running->used;
	if (most > sizeof(running->room) - running->used)
		return NULL;
	const ssize_t got = pread(running->memory, to, most, (off_t)(uintptr_t)from);
	const size_t length = got > 0 ? strnlen(to, (size_t)got) : 0;
	if (got <= 0 || length == (size_t)got)
		return NULL;
	running->used += (length + sizeof(void *)) / sizeof(void *) * sizeof(void *);
	return to;
}

/* Copy an array of structs whose first member is a name, and the names. NULL: as read_text(). */
static void *read_named(struct running *running, const void *from, size_t n, size_t bytes)
{
	unsigned char *to = read_array(running, from, n, bytes);
	for (size_t i = 0; to && i < n; i++) {
		const char **name = (const char **)(void *)(to + i * bytes);
		if (!(*name = read_text(running, *name, NAME_BYTES)))
			return NULL;
	}
	return to;
}

static bool read_fields(struct running *running, struct relay_trace_event *event)
{
	if (event->n_fields > RELAY_FIELDS_MAX)
		return false;
	event->fields = read_named(running, event->fields, event->n_fields, sizeof(*event->fields));
	return event->fields;
}

static bool read_labels(struct running *running, struct relay_trace_enum *one)
{
	if (one->n_labels > RELAY_LABELS_MAX)
		return false;
	one->labels = read_named(running, one->labels, one->n_labels, sizeof(*one->labels));
	return one->labels && (one->field = read_text(running, one->field, NAME_BYTES));
}

static bool read_enums(struct running *running, struct relay_trace_event *event)
{
	const uint32_t n = relay_event_n_enums(event);
	if (n > RELAY_FIELDS_MAX)
		return false;
	struct relay_trace_enum *enums = read_array(running, event->enums, n, sizeof(*enums));
	for (uint32_t i = 0; enums && i < n; i++)
		if (!read_labels(running, &enums[i]))
			return false;
	event->enums = enums;
	return enums;
}

/* Programs that were compiled with earlier versions of <relayfs/trace_event.h> have a shorter struct. `structs` is not
 * copied, because flatten() in trace/tracepoint.c has replaced it before an event is added to a list. */
static bool read_event(struct running *running, struct relay_trace_event *event, const struct relay_trace_event *from)
{
	static const size_t bytes[] = {
	    offsetof(struct relay_trace_event, file),
	    offsetof(struct relay_trace_event, n_enums),
	    offsetof(struct relay_trace_event, structs),
	};
	running->used = 0;
	*event = (struct relay_trace_event){0};
	if (!read_memory(running, event, from, bytes[0]) || event->has_place > 2 ||
	    !read_memory(running, event, from, bytes[event->has_place]))
		return false;
	event->provider = read_text(running, event->provider, NAME_BYTES);
	event->name = read_text(running, event->name, NAME_BYTES);
	if (!event->provider || !event->name || !read_fields(running, event) || !read_enums(running, event))
		return false;
	if (event->has_place && event->file)
		event->file = read_text(running, event->file, PLACE_BYTES);
	return relay_tsdl_allows(event);
}

/* --- lists --- */

/* The first line. */
static void add_program(struct running *running, const char *from)
{
	char *name = read_text(running, from, PLACE_BYTES);
	for (char *at = name; at && *at; at++)
		if (*at == '\n')
			*at = '_';
	running->length = (size_t)snprintf(running->text, running->size, "%s\n", name ? name : "");
}

/* Append an event's declaration, unless it is left out. False: there is no room for more. */
static bool add_event(struct running *running, const struct relay_trace_event *from)
{
	struct relay_trace_event event;
	if (running->length >= running->size)
		return false;
	if (!read_event(running, &event, from)) {
		running->n_pointers += LEFT_OUT_COST;
		return true;
	}
	running->length += relay_tsdl_event(&event, running->n_events++, running->text + running->length,
	                                    running->size - running->length);
	return true;
}

static bool next_pointer(struct running *running, const void *pointer)
{
	return pointer && running->n_pointers++ < MOST_POINTERS;
}

static void add_object(struct running *running, const struct relay_trace_object *object)
{
	const struct relay_trace_event *event;
	for (struct relay_trace_event *const *at = object->events; at < object->events_end; at++)
		if (!next_pointer(running, at) || !read_memory(running, &event, at, sizeof(event)) ||
		    (event && !add_event(running, event)))
			return;
}

static void add_objects(struct running *running, const struct relay_traced_own *own)
{
	struct relay_trace_object object = {.next = own->objects};
	while (next_pointer(running, object.next) && read_memory(running, &object, object.next, sizeof(object)))
		add_object(running, &object);
	struct relay_declared declared = {.next = own->declared};
	for (const struct relay_declared *from; next_pointer(running, from = declared.next);)
		if (!read_memory(running, &declared, from, sizeof(declared)) || !add_event(running, &from->event))
			return;
}

/* --- the interface --- */

ssize_t relay_trace_running(int memory, uint64_t page, char *text, size_t size)
{
	const size_t skipped = offsetof(struct relay_traced_own, magic);
	struct relay_traced_own own;
	struct running *running = malloc(sizeof(*running));
	if (!running)
		return -ENOMEM;
	memset(running, 0, offsetof(struct running, room));
	running->memory = memory;
	running->text = text;
	running->size = size;
	const ssize_t got = pread(memory, (char *)&own + skipped, sizeof(own) - skipped, (off_t)(page + skipped));
	/* EIO: there is no memory behind the page; it may be the last page of a program's variables. */
	ssize_t result = got < 0 && errno != EIO ? -errno : -ENOENT;
	if (got == (ssize_t)(sizeof(own) - skipped) && own.magic == RELAY_EVENT_LISTS) {
		add_program(running, own.program);
		add_objects(running, &own);
		result = running->length > size ? -EFBIG : (ssize_t)running->length;
	}
	free(running);
	return result;
}
