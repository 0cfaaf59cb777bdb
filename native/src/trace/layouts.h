/* SPDX-License-Identifier: MIT */
/*
 * What the events of a process look like in its packets, and how to go from one event of a packet to the next.
 *
 *     |id|time|fields|id|time|fields|65535|id|time|fi        each event: a head (trace_store.h), then
 *      'head-'                                                bytes of fixed length, a string or a byte array,
 *                                                             bytes of fixed length, ...
 *
 * An event is passed in steps, which relay_layouts_add() makes of the types of its fields. Nothing is read beyond the packet,
 * whatever is in it or declared.
 */
#ifndef RELAYFS_TRACE_LAYOUTS_H
#define RELAYFS_TRACE_LAYOUTS_H

#include <relayfs/trace_store.h>
#include <stdbool.h>
#include <string.h>

enum relay_step_end { RELAY_EVENT_ENDS, RELAY_STRING_FOLLOWS, RELAY_ARRAY_FOLLOWS };

struct relay_step {
	uint32_t bytes; /* of fixed length, before what `end` says */
	uint32_t end;   /* enum relay_step_end */
};

struct relay_layout {
	uint64_t id;
	struct relay_step *steps; /* the last of which is RELAY_EVENT_ENDS */
	/* Of relay_layouts_declare(), in one piece of memory with all names; NULL: only the types are known. */
	struct relay_trace_event *event;
};

struct relay_layouts {
	struct relay_layout *at; /* by rising id */
	size_t n, capacity;
	uint32_t context_bytes; /* between each event's head and its fields */
};

/* The bytes of a field of each type; 0: they vary. */
extern const uint32_t relay_type_bytes[RELAY_N_TRACE_TYPES];

/* NULL: no event of this id is declared. */
const struct relay_layout *relay_find_layout(const struct relay_layouts *layouts, uint64_t id);

/* Where in a packet's events a reader is. */
struct relay_event_cursor {
	const struct relay_layouts *layouts;
	const unsigned char *at, *stop;
	uint64_t time, end;                /* of the last event, at first the packet's timestamp_begin; timestamp_end */
	uint64_t id;                       /* of the last event, or of the wrong one */
	const struct relay_layout *layout; /* of the last event */
	const unsigned char *context;      /* of the last event, followed by its fields, which end at `at` */
};

/* Where the event ends whose first step begins at `at`; NULL: not before `end`. */
static inline const unsigned char *relay_pass_event(const struct relay_step *step, const unsigned char *at,
                                                    const unsigned char *end)
{
	for (;; step++) {
		uint32_t length;
		if ((size_t)(end - at) < step->bytes)
			return NULL;
		at += step->bytes;
		if (step->end == RELAY_EVENT_ENDS)
			return at;
		if (step->end == RELAY_STRING_FOLLOWS) {
			at = memchr(at, 0, (size_t)(end - at));
			if (!at)
				return NULL;
			at++;
			continue;
		}
		if ((size_t)(end - at) < sizeof(length))
			return NULL;
		memcpy(&length, at, sizeof(length));
		/* Loaded once: the packet may lie in a file that somebody writes to. */
		__asm__("" : "+r"(length));
		at += sizeof(length);
		if ((size_t)(end - at) < length)
			return NULL;
		at += length;
	}
}

struct relay_event_head {
	uint64_t id, time;
	size_t bytes;
};

/* The head at `at`, of an event after one of the time `last`. false: it is cut. */
static inline bool relay_read_head(const unsigned char *at, size_t left, uint64_t last, struct relay_event_head *head)
{
	const uint64_t mask = (1ull << RELAY_TRACE_TIME_BITS) - 1;
	uint16_t ids[2];
	uint64_t word;
	if (left < sizeof(word))
		return false;
	memcpy(&word, at, sizeof(word));
	*head = (struct relay_event_head){word & RELAY_TRACE_EXTENDED, (last & ~mask) | word >> RELAY_TRACE_ID_BITS,
	                                  sizeof(word)};
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

/* Go on to the event at cursor->at, which is before cursor->stop. A fault leaves cursor->at and cursor->time as they were. */
static inline enum relay_packet_fault relay_next_event(struct relay_event_cursor *cursor)
{
	struct relay_event_head head;
	if (!relay_read_head(cursor->at, (size_t)(cursor->stop - cursor->at), cursor->time, &head))
		return RELAY_PACKET_CUT;
	if (head.time < cursor->time || head.time > cursor->end)
		return RELAY_PACKET_TIME;
	cursor->id = head.id;
	if (!cursor->layout || cursor->layout->id != head.id)
		cursor->layout = relay_find_layout(cursor->layouts, head.id);
	if (!cursor->layout)
		return RELAY_PACKET_UNDECLARED;
	const unsigned char *context = cursor->at + head.bytes;
	const unsigned char *end = relay_pass_event(cursor->layout->steps, context, cursor->stop);
	if (!end)
		return RELAY_PACKET_FIELDS;
	cursor->context = context;
	cursor->at = end;
	cursor->time = head.time;
	return RELAY_PACKET_GOOD;
}

#endif
