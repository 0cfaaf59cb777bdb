/* SPDX-License-Identifier: MIT */
/* The values of an event's fields. An event ends where relay_next_event() has found its end, but a recorded file can change
 * meanwhile, so nothing is read beyond. */
#include "merge/stream.h"

#include "trace/field_types.h"

struct relay_fields relay_event_fields(const struct relay_event *event)
{
	const struct relay_trace_field *first = event->declared->fields;
	return (struct relay_fields){.declared = event->declared,
	                             .field = first,
	                             .last = first + event->declared->n_fields,
	                             .at = event->fields,
	                             .end = event->end,
	                             .before = "",
	                             .has_structs = event->has_structs};
}

static void load_number(struct relay_value *value, const unsigned char *at)
{
	const uint32_t bytes = value->type->bytes;
	value->u = relay_load_unsigned(at, bytes);
	value->i = relay_as_signed(value->u, bytes);
	if (value->type->kind == RELAY_FIELD_REAL)
		value->d = relay_load_real(at, bytes);
}

static bool read_number(struct relay_fields *fields, struct relay_value *value)
{
	const uint32_t bytes = value->type->bytes;
	if ((size_t)(fields->end - fields->at) < bytes)
		return false;
	load_number(value, fields->at);
	fields->at += bytes;
	return true;
}

static const char *label_of(const struct relay_trace_enum *labels, const struct relay_value *value)
{
	const int64_t number = value->type->kind == RELAY_FIELD_SIGNED ? value->i : (int64_t)value->u;
	for (uint32_t i = 0; labels && i < labels->n_labels; i++)
		if (labels->labels[i].value == number)
			return labels->labels[i].name;
	return NULL;
}

static bool read_enum(struct relay_fields *fields, struct relay_value *value)
{
	if (!read_number(fields, value))
		return false;
	value->label = label_of(relay_field_enum(fields->declared, value->name), value);
	return true;
}

/* count: how many numbers. */
static bool read_array(struct relay_fields *fields, struct relay_value *value, size_t count)
{
	if ((size_t)(fields->end - fields->at) / value->type->bytes < count)
		return false;
	value->is_array = true;
	value->data = fields->at;
	value->length = count;
	fields->at += count * value->type->bytes;
	return true;
}

static bool read_sequence(struct relay_fields *fields, struct relay_value *value)
{
	if ((size_t)(fields->end - fields->at) < sizeof(uint32_t))
		return false;
	const size_t count = relay_load_unsigned(fields->at, sizeof(uint32_t));
	fields->at += sizeof(uint32_t);
	return read_array(fields, value, count);
}

struct relay_value relay_array_at(const struct relay_value *array, size_t i)
{
	struct relay_value value = {.type = array->type};
	load_number(&value, array->data + i * array->type->bytes);
	return value;
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
	value->length = relay_load_unsigned(fields->at, sizeof(uint32_t));
	if (left - sizeof(uint32_t) < value->length)
		return false;
	value->data = fields->at + sizeof(uint32_t);
	fields->at = value->data + value->length;
	return true;
}

static bool read_value(struct relay_fields *fields, struct relay_value *value, uint32_t type)
{
	if (type & RELAY_TRACE_IS_ENUM)
		return read_enum(fields, value);
	if (type & RELAY_TRACE_IS_SEQUENCE)
		return read_sequence(fields, value);
	if (relay_field_count(type))
		return read_array(fields, value, relay_field_count(type));
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

/* Find out which structs end and begin before a value. */
static void place(struct relay_fields *fields, struct relay_value *value)
{
	size_t length;
	value->n_ended = fields->depth - relay_common_structs(fields->before, value->name, &length);
	value->begun += length;
	value->own_name = relay_field_own_name(value->name);
	fields->depth = relay_field_depth(value->name);
	fields->before = value->name;
}

bool relay_fields_next(struct relay_fields *fields, struct relay_value *value)
{
	if (fields->field == fields->last)
		return false;
	const struct relay_trace_field *field = fields->field++;
	value->name = value->own_name = value->begun = field->name;
	value->n_ended = 0;
	value->type = relay_field_base(field->type);
	value->label = NULL;
	value->is_array = false;
	if (!read_value(fields, value, field->type))
		return false;
	if (fields->has_structs)
		place(fields, value);
	return true;
}
