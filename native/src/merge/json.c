/* SPDX-License-Identifier: MIT */
/*
 * A JSON object a line:
 *
 *     {"ns":1700000000123456789,"process":"app","pid":42,"cpu":0,"event":"server:request","fields":{"id":7}}
 *     {"ns":1700000000123456790,"process":"app","pid":42,"cpu":0,"lost":3,"since":1700000000123456789}
 *
 * Byte arrays are strings of hexadecimal digits, as is what is no finite number a string of its name.
 */
#include "merge/export.h"

#include <stdlib.h>

void relay_put_json_string(struct relay_output *output, const void *text, size_t length)
{
	relay_put_byte(output, '"');
	relay_put_string(output, text, length, RELAY_ESCAPE_JSON);
	relay_put_byte(output, '"');
}

void relay_put_json_value(struct relay_output *output, const struct relay_value *value)
{
	switch (value->type) {
	case RELAY_TRACE_I8:
	case RELAY_TRACE_I16:
	case RELAY_TRACE_I32:
	case RELAY_TRACE_I64:
		relay_put_i64(output, value->i);
		break;
	case RELAY_TRACE_F32:
	case RELAY_TRACE_F64:
		relay_put_double(output, value->d, value->type == RELAY_TRACE_F32, "\"");
		break;
	case RELAY_TRACE_STRING:
		relay_put_json_string(output, value->data, value->length);
		break;
	case RELAY_TRACE_BYTES:
		relay_put_byte(output, '"');
		relay_put_bytes(output, value->data, value->length);
		relay_put_byte(output, '"');
		break;
	default:
		relay_put_u64(output, value->u);
		break;
	}
}

void relay_put_json_fields(struct relay_output *output, const struct relay_event *event,
                           bool (*leaves_out)(const char *name))
{
	struct relay_fields fields = relay_event_fields(event);
	struct relay_value value;
	char before = '{';
	while (relay_fields_next(&fields, &value)) {
		if (leaves_out && leaves_out(value.name))
			continue;
		relay_put_byte(output, (unsigned char)before);
		relay_put_json_string(output, value.name, strlen(value.name));
		relay_put_byte(output, ':');
		relay_put_json_value(output, &value);
		before = ',';
	}
	relay_put_text(output, before == '{' ? "{}" : "}");
}

static void put_number(struct relay_output *output, const char *before, uint64_t number)
{
	relay_put_text(output, before);
	relay_put_u64(output, number);
}

static void put_event(struct relay_encoder *encoder, struct relay_output *output, const struct relay_event *event)
{
	const struct relay_traced *traced = event->stream->traced;
	(void)encoder;
	put_number(output, "{\"ns\":", event->time);
	relay_put_text(output, ",\"process\":");
	relay_put_json_string(output, traced->name, strlen(traced->name));
	if (relay_event_pid(event))
		put_number(output, ",\"pid\":", relay_event_pid(event));
	if (traced->vtid_at >= 0 && !event->lost)
		put_number(output, ",\"tid\":", relay_event_tid(event));
	put_number(output, ",\"cpu\":", event->stream->cpu);
	if (event->lost) {
		put_number(output, ",\"lost\":", event->lost);
		put_number(output, ",\"since\":", event->since);
	} else {
		relay_put_text(output, ",\"event\":\"");
		relay_put_text(output, event->declared->provider);
		relay_put_byte(output, ':');
		relay_put_text(output, event->declared->name);
		relay_put_text(output, "\",\"fields\":");
		relay_put_json_fields(output, event, NULL);
	}
	relay_put_text(output, "}\n");
}

static void do_nothing(struct relay_encoder *encoder, struct relay_output *output)
{
	(void)encoder, (void)output;
}

static void free_encoder(struct relay_encoder *encoder)
{
	free(encoder);
}

struct relay_encoder *relay_encoder_json(void)
{
	struct relay_encoder *encoder = malloc(sizeof(*encoder));
	if (encoder)
		*encoder = (struct relay_encoder){do_nothing, put_event, do_nothing, free_encoder};
	return encoder;
}
