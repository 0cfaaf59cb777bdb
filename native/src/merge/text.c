/* SPDX-License-Identifier: MIT */
/*
 * A line an event:
 *
 *     [12:34:56.123456789] app-42 cpu0 server:request: { id = 7, path = "/index.html", ms = 1.25 }
 *     [12:34:56.123456790] app-42 cpu0 lost 3 events since [12:34:56.123456789]
 *
 * Integers that are declared so are hexadecimal, as are byte arrays: 0x00FF and <00ff>.
 */
#define _GNU_SOURCE
#include "merge/export.h"

#include <stdlib.h>
#include <time.h>

static const uint64_t NS = 1000000000;
enum { STAMP_BYTES = 64 };

struct text_encoder {
	struct relay_encoder encoder;
	uint32_t times; /* enum relay_export_times */
	bool has_first;
	uint64_t first;          /* the time of the first line */
	uint64_t second;         /* of which `stamp` tells the date and time */
	char stamp[STAMP_BYTES]; /* "": none yet */
};

/* --- times --- */

static void set_stamp(struct text_encoder *text, uint64_t second)
{
	struct tm local;
	time_t seconds = (time_t)second;
	const char *format = text->times == RELAY_EXPORT_DATE ? "%Y-%m-%d %H:%M:%S" : "%H:%M:%S";
	text->second = second;
	if (!localtime_r(&seconds, &local) || !strftime(text->stamp, sizeof(text->stamp), format, &local))
		memcpy(text->stamp, "-", 2);
}

static void put_seconds(struct text_encoder *text, struct relay_output *output, uint64_t second)
{
	if (text->times == RELAY_EXPORT_SECONDS || text->times == RELAY_EXPORT_RELATIVE) {
		relay_put_u64(output, second);
		return;
	}
	if (second != text->second || !text->stamp[0])
		set_stamp(text, second);
	relay_put_text(output, text->stamp);
}

static void put_time(struct text_encoder *text, struct relay_output *output, uint64_t time)
{
	bool is_negative = false;
	relay_put_byte(output, '[');
	if (text->times == RELAY_EXPORT_RELATIVE) {
		is_negative = time < text->first;
		time = is_negative ? text->first - time : time - text->first;
	}
	if (is_negative)
		relay_put_byte(output, '-');
	put_seconds(text, output, time / NS);
	relay_put_byte(output, '.');
	relay_put_padded(output, time % NS, 9);
	relay_put_byte(output, ']');
}

/* --- fields --- */

static void put_value(struct relay_output *output, const struct relay_value *value)
{
	switch (value->type) {
	case RELAY_TRACE_I8:
	case RELAY_TRACE_I16:
	case RELAY_TRACE_I32:
	case RELAY_TRACE_I64:
		relay_put_i64(output, value->i);
		break;
	case RELAY_TRACE_X8:
	case RELAY_TRACE_X16:
	case RELAY_TRACE_X32:
	case RELAY_TRACE_X64:
		relay_put_text(output, "0x");
		relay_put_hex(output, value->u);
		break;
	case RELAY_TRACE_F32:
	case RELAY_TRACE_F64:
		relay_put_double(output, value->d, value->type == RELAY_TRACE_F32, "");
		break;
	case RELAY_TRACE_STRING:
		relay_put_byte(output, '"');
		relay_put_string(output, value->data, value->length, RELAY_ESCAPE_TEXT);
		relay_put_byte(output, '"');
		break;
	case RELAY_TRACE_BYTES:
		relay_put_byte(output, '<');
		relay_put_bytes(output, value->data, value->length);
		relay_put_byte(output, '>');
		break;
	default:
		relay_put_u64(output, value->u);
		break;
	}
}

static void put_fields(struct relay_output *output, const struct relay_event *event)
{
	struct relay_fields fields = relay_event_fields(event);
	struct relay_value value;
	const char *before = "{ ";
	while (relay_fields_next(&fields, &value)) {
		relay_put_text(output, before);
		relay_put_text(output, value.name);
		relay_put_text(output, " = ");
		put_value(output, &value);
		before = ", ";
	}
	relay_put_text(output, *before == '{' ? "{ }" : " }");
}

/* --- lines --- */

static void put_writer(struct relay_output *output, const struct relay_event *event)
{
	const struct relay_traced *traced = event->stream->traced;
	relay_put_string(output, traced->name, strlen(traced->name), RELAY_ESCAPE_TEXT);
	if (!event->lost || traced->pid) {
		relay_put_byte(output, '-');
		relay_put_u64(output, relay_event_pid(event));
	}
	if (traced->vtid_at >= 0 && !event->lost) {
		relay_put_byte(output, '/');
		relay_put_u64(output, relay_event_tid(event));
	}
	relay_put_text(output, " cpu");
	relay_put_u64(output, event->stream->cpu);
	relay_put_byte(output, ' ');
}

static void put_event(struct relay_encoder *encoder, struct relay_output *output, const struct relay_event *event)
{
	struct text_encoder *text = (struct text_encoder *)encoder;
	if (!text->has_first)
		text->first = event->time;
	text->has_first = true;
	put_time(text, output, event->time);
	relay_put_byte(output, ' ');
	put_writer(output, event);
	if (event->lost) {
		relay_put_text(output, "lost ");
		relay_put_u64(output, event->lost);
		relay_put_text(output, event->lost == 1 ? " event since " : " events since ");
		put_time(text, output, event->since);
	} else {
		relay_put_text(output, event->declared->provider);
		relay_put_byte(output, ':');
		relay_put_text(output, event->declared->name);
		relay_put_text(output, ": ");
		put_fields(output, event);
	}
	relay_put_byte(output, '\n');
}

static void do_nothing(struct relay_encoder *encoder, struct relay_output *output)
{
	(void)encoder, (void)output;
}

static void free_encoder(struct relay_encoder *encoder)
{
	free(encoder);
}

struct relay_encoder *relay_encoder_text(const struct relay_export_options *options)
{
	struct text_encoder *text = malloc(sizeof(*text));
	if (!text)
		return NULL;
	*text = (struct text_encoder){.encoder = {do_nothing, put_event, do_nothing, free_encoder},
	                              .times = options->times};
	return &text->encoder;
}
