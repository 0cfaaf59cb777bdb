/* SPDX-License-Identifier: MIT */
/*
 * A JSON object a line:
 *
 *     {"ns":1700000000123456789,"process":"app","pid":42,"tid":43,"cpu":0,"event":"server:request","fields":{"id":7}}
 *     {"ns":1700000000123456790,"process":"app","pid":42,"cpu":0,"lost":3,"since":1700000000123456789,
 *      "cause":"full"}
 *
 * With several machines there is a line about each of them first (relay_put_json_host()), and then "host" behind "ns", and with
 * options.shows_errors "error_ns", how far "ns" may be off. An event that has a level has it before its name: "level":"err". Fields of the type bytes are strings of hexadecimal
 * digits. An enum's value is its label, a string, if it has one, and otherwise a number. Structs are objects. NaN and the
 * infinities, which JSON does not have, are strings of these names.
 */
#include "merge/export.h"

#include <stdlib.h>

void relay_put_json_string(struct relay_output *output, const void *text, size_t length)
{
	relay_put_byte(output, '"');
	relay_put_string(output, text, length, RELAY_ESCAPE_JSON);
	relay_put_byte(output, '"');
}

static void put_error(struct relay_output *output, const char *before, uint64_t error)
{
	if (error != UINT64_MAX) {
		relay_put_number(output, before, error);
		return;
	}
	relay_put_text(output, before);
	relay_put_text(output, "null");
}

void relay_put_json_host(struct relay_output *output, const struct relay_host *host)
{
	relay_put_text(output, "{\"host\":");
	relay_put_json_string(output, host->name, strlen(host->name));
	put_error(output, ",\"max_error_ns\":", host->max_error);
	put_error(output, ",\"est_error_ns\":", host->est_error);
	relay_put_byte(output, '}');
}

static void put_name(struct relay_output *output, char before, const char *name, size_t length)
{
	relay_put_byte(output, (unsigned char)before);
	relay_put_json_string(output, name, length);
	relay_put_byte(output, ':');
}

static void end_objects(struct relay_output *output, uint32_t n)
{
	for (; n; n--)
		relay_put_byte(output, '}');
}

void relay_put_json_fields(struct relay_output *output, const struct relay_event *event,
                           bool (*leaves_out)(const char *name))
{
	struct relay_fields fields = relay_event_fields(event);
	struct relay_value value;
	size_t length;
	char before = '{';
	while (relay_fields_next(&fields, &value)) {
		const char *at = value.begun, *name;
		end_objects(output, value.n_ended);
		if (leaves_out && leaves_out(value.name))
			continue;
		for (; (name = relay_struct_next(&value, &at, &length)); before = '{')
			put_name(output, before, name, length);
		put_name(output, before, value.own_name, strlen(value.own_name));
		relay_put_value(output, &value, RELAY_ESCAPE_JSON);
		before = ',';
	}
	end_objects(output, fields.depth);
	relay_put_text(output, before == '{' ? "{}" : "}");
}

struct json_encoder {
	struct relay_encoder encoder;
	bool marks_late, shows_errors;
};

static void put_level(struct relay_output *output, const struct relay_event *event)
{
	const char *level = relay_event_level(event);
	if (!level)
		return;
	relay_put_text(output, ",\"level\":\"");
	relay_put_text(output, level);
	relay_put_byte(output, '"');
}

static void put_event(struct relay_encoder *encoder, struct relay_output *output, const struct relay_event *event)
{
	const struct relay_traced *traced = event->stream->traced;
	const struct json_encoder *json = (const struct json_encoder *)encoder;
	relay_put_number(output, "{\"ns\":", event->time);
	if (json->shows_errors && traced->map)
		put_error(output, ",\"error_ns\":", relay_event_error(event));
	if (traced->host) {
		relay_put_text(output, ",\"host\":");
		relay_put_json_string(output, traced->host->name, strlen(traced->host->name));
	}
	relay_put_text(output, ",\"process\":");
	relay_put_json_string(output, traced->name, strlen(traced->name));
	if (relay_event_pid(event))
		relay_put_number(output, ",\"pid\":", relay_event_pid(event));
	if (traced->vtid_at >= 0 && !event->lost)
		relay_put_number(output, ",\"tid\":", relay_event_tid(event));
	if (event->stream->cpu == RELAY_STATE_CPU)
		relay_put_text(output, ",\"state\":true");
	else if (relay_is_of_cpu(event))
		relay_put_number(output, ",\"cpu\":", event->stream->cpu);
	if (json->marks_late && event->is_late)
		relay_put_text(output, ",\"late\":true");
	if (event->lost) {
		relay_put_number(output, ",\"lost\":", event->lost);
		relay_put_number(output, ",\"since\":", event->since);
		relay_put_cause(output, ",\"cause\":\"", event, "\"");
	} else {
		put_level(output, event);
		relay_put_text(output, ",\"event\":\"");
		relay_put_event_name(output, event);
		relay_put_text(output, "\",\"fields\":");
		relay_put_json_fields(output, event, NULL);
	}
	relay_put_text(output, "}\n");
}

static void begin(struct relay_encoder *encoder, struct relay_output *output)
{
	const struct relay_host *host;
	for (uint32_t i = 0; (host = relay_merge_host(encoder->merge, i)); i++) {
		relay_put_json_host(output, host);
		relay_put_byte(output, '\n');
	}
}

struct relay_encoder *relay_encoder_json(const struct relay_export_options *options)
{
	struct json_encoder *json = malloc(sizeof(*json));
	if (!json)
		return NULL;
	*json = (struct json_encoder){.encoder = {.begin = begin, .event = put_event},
	                              .marks_late = options->marks_late,
	                              .shows_errors = options->shows_errors};
	return &json->encoder;
}
