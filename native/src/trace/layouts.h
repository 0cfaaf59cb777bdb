/* SPDX-License-Identifier: MIT */
/*
 * The lengths of a process's events, and a cursor that goes from one event of a packet to the next.
 *
 *     |id|time|fields|id|time|fields|65535|id|time|fields|      a packet: each event is a header (trace_store.h) and
 *     '-header'                                                 fields
 *
 * The length of an event is found in steps, which relay_layouts_add() makes from the types of the event's fields: a
 * step is a number of bytes and then a string, a sequence or the end of the event. No function reads beyond the
 * packet, whatever the packet contains and whatever was declared.
 */
#ifndef RELAYFS_TRACE_LAYOUTS_H
#define RELAYFS_TRACE_LAYOUTS_H

#include <relayfs/trace_store.h>
#include <stdbool.h>
#include <string.h>

enum relay_step_end { RELAY_EVENT_ENDS, RELAY_STRING_FOLLOWS, RELAY_SEQUENCE_FOLLOWS };

struct relay_step {
	uint32_t bytes; /* length of the fields before `end`, of types with a fixed length */
	uint16_t end;   /* enum relay_step_end */
	uint16_t each;  /* bytes of each number of the sequence */
};

/* Fill in the steps, n_types + 1 of them, by which relay_pass_event() passes `bytes` and then fields of these types
 * (struct relay_trace_field), which have to be sound. */
void relay_steps_fill(struct relay_step *steps, const uint32_t *types, uint32_t n_types, uint32_t bytes);

/* Return the steps, to be freed, by which relay_pass_event() passes `bytes` and then fields of these types (struct
 * relay_trace_field), which have to be sound. NULL: no memory. */
struct relay_step *relay_steps_make(const uint32_t *types, uint32_t n_types, uint32_t bytes);

/* The layout of the events of one id. */
struct relay_event_layout {
	uint64_t id;
	struct relay_step *steps; /* the last one ends with RELAY_EVENT_ENDS */
	/* Copied by relay_layouts_declare(), in one allocation with all names; NULL: relay_layouts_add() was called. */
	struct relay_trace_event *event;
	bool has_structs; /* some of its fields are in structs */
};

struct relay_layouts {
	struct relay_event_layout *at; /* n of them, sorted by id */
	size_t n, capacity;
	uint32_t context_bytes; /* between each event's header and its fields */
};

/* Return the layout of an id. NULL: no event of this id was added. */
const struct relay_event_layout *relay_find_layout(const struct relay_layouts *layouts, uint64_t id);

/* A position in the events of a packet. The caller sets `layouts`; `at` to the first event, and `stop` to the end of all;
 * `time` and `end` to the packet's timestamp_begin and timestamp_end; and all others to 0. */
struct relay_event_cursor {
	const struct relay_layouts *layouts;
	const unsigned char *at, *stop;
	uint64_t time, end;                      /* time: of the last event */
	uint64_t id;                             /* of the last event, or of the event with a fault */
	const struct relay_event_layout *layout; /* of the last event */
	const unsigned char *context;            /* of the last event, followed by its fields, which end at `at` */
};

/* Return the end of an event, whose fields begin at `at` with this step. NULL: its fields extend beyond `end`. */
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
		/* Prevents a second load of `length`, which may differ: the packet may be in a mapped file. */
		__asm__("" : "+r"(length));
		at += sizeof(length);
		const size_t bytes = (size_t)length * step->each;
		if ((size_t)(end - at) < bytes)
			return NULL;
		at += bytes;
	}
}

struct relay_event_head {
	uint64_t id, time;
	size_t bytes;
};

/* Read the header of an event. at: the header, at most `left` bytes long; last: the time of the event before. false:
 * `left` is too small. */
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
		/* The first time at or after `last` that has the low bits of the header, as CTF readers compute it. */
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

/* Read the event at cursor->at, which is before cursor->stop, and advance cursor->at behind it. Returns
 * RELAY_PACKET_GOOD, or a fault; then cursor->at and cursor->time are unchanged. */
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
