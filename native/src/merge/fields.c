/* SPDX-License-Identifier: MIT */
/* The values of an event's fields. An event ends where relay_next_event() has found its end, but a recorded file can change
 * meanwhile, so nothing is read beyond. */
#include "merge/stream.h"

struct relay_fields relay_event_fields(const struct relay_event *event)
{
	const struct relay_trace_field *first = event->declared->fields;
	return (struct relay_fields){first, first + event->declared->n_fields, event->fields, event->end};
}

static uint64_t load(const unsigned char *at, size_t bytes)
{
	uint64_t value = 0;
	memcpy(&value, at, bytes);
	return value;
}

static void read_number(struct relay_value *value, const unsigned char *at)
{
	float single;
	const uint32_t bytes = relay_type_bytes[value->type], unused = 64 - 8 * bytes;
	value->u = load(at, bytes);
	switch (value->type) {
	case RELAY_TRACE_I8:
	case RELAY_TRACE_I16:
	case RELAY_TRACE_I32:
	case RELAY_TRACE_I64:
		/* The shift to the left as an unsigned number, back with its sign. */
		value->i = (int64_t)(value->u << unused) >> unused;
		break;
	case RELAY_TRACE_F32:
		memcpy(&single, at, sizeof(single));
		value->d = (double)single;
		break;
	case RELAY_TRACE_F64:
		memcpy(&value->d, at, sizeof(value->d));
		break;
	default:
		break;
	}
}

static bool read_string(struct relay_fields *fields, struct relay_value *value)
{
	const unsigned char *null = memchr(fields->at, 0, (size_t)(fields->end - fields->at));
	if (!null)
		return false;
	value->data = fields->at;
	value->length = (size_t)(null - fields->at);
	fields->at = null + 1;
	return true;
}

static bool read_bytes(struct relay_fields *fields, struct relay_value *value)
{
	size_t left = (size_t)(fields->end - fields->at);
	if (left < sizeof(uint32_t))
		return false;
	value->length = load(fields->at, sizeof(uint32_t));
	if (left - sizeof(uint32_t) < value->length)
		return false;
	value->data = fields->at + sizeof(uint32_t);
	fields->at = value->data + value->length;
	return true;
}

bool relay_fields_next(struct relay_fields *fields, struct relay_value *value)
{
	if (fields->field == fields->last)
		return false;
	value->name = fields->field->name;
	value->type = fields->field->type;
	fields->field++;
	const uint32_t bytes = relay_type_bytes[value->type];
	if (!bytes)
		return value->type == RELAY_TRACE_STRING ? read_string(fields, value) : read_bytes(fields, value);
	if ((size_t)(fields->end - fields->at) < bytes)
		return false;
	read_number(value, fields->at);
	fields->at += bytes;
	return true;
}
