/* SPDX-License-Identifier: MIT */
/* The values of an event's fields. An event ends where relay_next_event() has found its end, but a recorded file can change
 * meanwhile, so nothing is read beyond. */
#include "merge/stream.h"

#include "trace/field_types.h"

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

static double real_at(const unsigned char *at, size_t bytes)
{
	float single;
	double value;
	if (bytes == sizeof(value)) {
		memcpy(&value, at, sizeof(value));
		return value;
	}
	memcpy(&single, at, sizeof(single));
	return (double)single;
}

static bool read_number(struct relay_fields *fields, struct relay_value *value)
{
	const uint32_t bytes = value->type->bytes, unused = 64 - 8 * bytes;
	if ((size_t)(fields->end - fields->at) < bytes)
		return false;
	value->u = load(fields->at, bytes);
	/* The shift to the left as an unsigned number, back with its sign. */
	value->i = (int64_t)(value->u << unused) >> unused;
	if (value->type->kind == RELAY_FIELD_REAL)
		value->d = real_at(fields->at, bytes);
	fields->at += bytes;
	return true;
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
	value->type = &relay_field_types[fields->field->type];
	fields->field++;
	switch (value->type->kind) {
	case RELAY_FIELD_UNSIGNED:
	case RELAY_FIELD_SIGNED:
	case RELAY_FIELD_HEX:
	case RELAY_FIELD_REAL:
		return read_number(fields, value);
	case RELAY_FIELD_STRING:
		return read_string(fields, value);
	case RELAY_FIELD_BYTES:
		return read_bytes(fields, value);
	}
	return false;
}
