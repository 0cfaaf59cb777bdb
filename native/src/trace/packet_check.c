/* SPDX-License-Identifier: MIT */
/*
 * Are a packet's events what their process has declared? A viewer takes each event's length from its declaration, so one
 * that is not as declared makes the rest of the packet unreadable, and viewers give up the whole recording for that.
 *
 *     |id|time|fields|id|time|fields|65535|id|time|fi        each event: a head (trace_store.h), then
 *      'head-'                                                bytes of fixed length, a string or a byte array,
 *                                                             bytes of fixed length, ...
 *
 * An event is passed in steps, which relay_layouts_add() makes of the types of its fields. Nothing is read beyond the packet,
 * whatever is in it or declared. The packet is the caller's own copy: in shared memory it could change after the check.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <relayfs/trace_store.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* More fields than any event has. */
enum { N_TYPES_MAX = 65536 };

enum step_end { EVENT_ENDS, STRING_FOLLOWS, ARRAY_FOLLOWS };

struct step {
	uint32_t bytes; /* of fixed length, before what `end` says */
	uint32_t end;   /* enum step_end */
};

struct layout {
	uint64_t id;
	struct step *steps; /* the last of which is EVENT_ENDS */
};

struct relay_layouts {
	struct layout *at; /* by rising id */
	size_t n, capacity;
	uint32_t context_bytes; /* between each event's head and its fields */
};

static const uint32_t type_bytes[RELAY_N_TRACE_TYPES] = {
    [RELAY_TRACE_U8] = 1,  [RELAY_TRACE_U16] = 2, [RELAY_TRACE_U32] = 4, [RELAY_TRACE_U64] = 8, [RELAY_TRACE_I8] = 1,
    [RELAY_TRACE_I16] = 2, [RELAY_TRACE_I32] = 4, [RELAY_TRACE_I64] = 8, [RELAY_TRACE_X8] = 1,  [RELAY_TRACE_X16] = 2,
    [RELAY_TRACE_X32] = 4, [RELAY_TRACE_X64] = 8, [RELAY_TRACE_F32] = 4, [RELAY_TRACE_F64] = 8,
};

struct relay_layouts *relay_layouts_new(uint32_t context_bytes)
{
	struct relay_layouts *layouts = calloc(1, sizeof(*layouts));
	if (layouts)
		layouts->context_bytes = context_bytes;
	return layouts;
}

void relay_layouts_free(struct relay_layouts *layouts)
{
	for (size_t i = 0; layouts && i < layouts->n; i++)
		free(layouts->at[i].steps);
	if (layouts)
		free(layouts->at);
	free(layouts);
}

/* Where an id is, or would be. */
static size_t place_of(const struct relay_layouts *layouts, uint64_t id)
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

static const struct layout *find_layout(const struct relay_layouts *layouts, uint64_t id)
{
	size_t place = place_of(layouts, id);
	return place < layouts->n && layouts->at[place].id == id ? &layouts->at[place] : NULL;
}

static struct step *make_steps(const uint32_t *types, uint32_t n_types, uint32_t context_bytes)
{
	struct step *steps = calloc((size_t)n_types + 1, sizeof(*steps));
	uint32_t n = 0;
	if (!steps)
		return NULL;
	steps[0].bytes = context_bytes;
	for (uint32_t i = 0; i < n_types; i++)
		if (type_bytes[types[i]])
			steps[n].bytes += type_bytes[types[i]];
		else
			steps[n++].end = types[i] == RELAY_TRACE_STRING ? STRING_FOLLOWS : ARRAY_FOLLOWS;
	steps[n].end = EVENT_ENDS;
	return steps;
}

static int make_room_for_layout(struct relay_layouts *layouts)
{
	size_t capacity = layouts->capacity ? 2 * layouts->capacity : 16;
	if (layouts->n < layouts->capacity)
		return 0;
	struct layout *more = reallocarray(layouts->at, capacity, sizeof(*more));
	if (!more)
		return -ENOMEM;
	layouts->at = more;
	layouts->capacity = capacity;
	return 0;
}

int relay_layouts_add(struct relay_layouts *layouts, uint64_t id, const uint32_t *types, uint32_t n_types)
{
	for (uint32_t i = 0; i < n_types; i++)
		if (types[i] >= RELAY_N_TRACE_TYPES)
			return -EINVAL;
	if (n_types > N_TYPES_MAX)
		return -EINVAL;
	if (find_layout(layouts, id))
		return -EEXIST;
	int err = make_room_for_layout(layouts);
	struct step *steps = err ? NULL : make_steps(types, n_types, layouts->context_bytes);
	if (!steps)
		return -ENOMEM;
	size_t place = place_of(layouts, id);
	memmove(&layouts->at[place + 1], &layouts->at[place], (layouts->n - place) * sizeof(*layouts->at));
	layouts->at[place] = (struct layout){id, steps};
	layouts->n++;
	return 0;
}

/* Where the event ends whose first step begins at `at`; NULL: not before `end`. */
static const unsigned char *pass_event(const struct step *step, const unsigned char *at, const unsigned char *end)
{
	for (;; step++) {
		uint32_t length;
		if ((size_t)(end - at) < step->bytes)
			return NULL;
		at += step->bytes;
		if (step->end == EVENT_ENDS)
			return at;
		if (step->end == STRING_FOLLOWS) {
			at = memchr(at, 0, (size_t)(end - at));
			if (!at)
				return NULL;
			at++;
			continue;
		}
		if ((size_t)(end - at) < sizeof(length))
			return NULL;
		memcpy(&length, at, sizeof(length));
		at += sizeof(length);
		if ((size_t)(end - at) < length)
			return NULL;
		at += length;
	}
}

struct head {
	uint64_t id, time;
	size_t bytes;
};

/* The head at `at`, of an event after one of the time `last`. false: it is cut. */
static bool read_head(const unsigned char *at, size_t left, uint64_t last, struct head *head)
{
	const uint64_t mask = (1ull << RELAY_TRACE_TIME_BITS) - 1;
	uint16_t ids[2];
	uint64_t word;
	if (left < sizeof(word))
		return false;
	memcpy(&word, at, sizeof(word));
	*head = (struct head){word & RELAY_TRACE_EXTENDED, (last & ~mask) | word >> RELAY_TRACE_ID_BITS, sizeof(word)};
	if (head->id != RELAY_TRACE_EXTENDED) {
		/* As readers take it: the first time after the last one that ends in these bits. */
		head->time += head->time < last ? mask + 1 : 0;
		return true;
	}
	if (left < sizeof(ids) + sizeof(word))
		return false;
	memcpy(ids, at, sizeof(ids));
	memcpy(&head->time, at + sizeof(ids), sizeof(head->time));
	head->id = ids[1];
	head->bytes = sizeof(ids) + sizeof(word);
	return true;
}

void relay_packet_check(const struct relay_layouts *layouts, const void *events, size_t length, uint64_t begin,
                        uint64_t end, struct relay_packet_checked *checked)
{
	const unsigned char *at = events, *stop = at + length;
	const struct layout *layout = NULL;
	*checked = (struct relay_packet_checked){.fault = RELAY_PACKET_GOOD, .time = begin};
	while (at < stop) {
		struct head head;
		const size_t left = (size_t)(stop - at);
		if (!read_head(at, left, checked->time, &head)) {
			checked->fault = RELAY_PACKET_CUT;
			return;
		}
		if (head.time < checked->time || head.time > end) {
			checked->fault = RELAY_PACKET_TIME;
			return;
		}
		if (!layout || layout->id != head.id)
			layout = find_layout(layouts, head.id);
		if (!layout) {
			checked->fault = RELAY_PACKET_UNDECLARED;
			checked->id = head.id;
			return;
		}
		at = pass_event(layout->steps, at + head.bytes, stop);
		if (!at) {
			checked->fault = RELAY_PACKET_FIELDS;
			checked->id = head.id;
			return;
		}
		checked->time = head.time;
		checked->n_events++;
		checked->good_bytes = (uint64_t)(at - (const unsigned char *)events);
	}
}
