/* SPDX-License-Identifier: MIT */
/*
 * RELAY_EXPORT_TEXT and RELAY_EXPORT_RECORDS_TEXT. RELAY_EXPORT_TEXT is a line an event:
 *
 *     [12:34:56.123456789] app-42/43 cpu0 server:request: { id = 7, path = "/index.html", ms = 1.25 }
 *     [12:34:56.123456789] app-42/43 cpu0 err server:failed: { id = 7 }
 *     [12:34:56.123456790] app-42 cpu0 lost 3 events since [12:34:56.123456789]: full
 *     [12:34:56.123456789] app-42/43 state server:workers: { name = "http", n = 4 }
 *
 * An event of the stream of states has `state` in place of the CPU. An event that has a level has it before its name. Integers of the types x8 to x64 and fields of the type bytes are
 * hexadecimal: 0xFF and <00ff>. An enum's value is its label, if it has one; a track_event_type that is a number (tracks.h) is
 * its letter. Arrays are [1, 2], structs { x = 1, y = 2 }.
 * With several machines the name of the event's precedes the program's, and with options.shows_errors how far the time may
 * be off, in seconds, or +-? if that is not known:
 *
 *     [12:34:56.123456789] +-0.001500 web-1 app-42/43 cpu0 server:request: { id = 7 }
 *
 * With options.marks_late, the line of an event that is older than one before it ends with " late". A brief line has
 * microseconds and no CPU:
 *
 *     12:34:56.123456 app-42 server:request: id=7 path="/index.html" ms=1.25
 *
 * RELAY_EXPORT_RECORDS_TEXT, the records of channels, has only the CPU. Lines of losses have no colon after it:
 *
 *     [12:34:56.123456789] cpu0: the text
 *     [12:34:56.123456788] cpu1 late: the text
 *     [12:34:56.123456790] cpu0 lost 3 records since [12:34:56.123456789]: full
 *
 * A brief line has the CPU only if it is a loss:
 *
 *     12:34:56.123456: the text
 */
#define _GNU_SOURCE
#include "merge/export.h"
#include "merge/tracks.h"

#include <stdlib.h>
#include <time.h>

static const uint64_t NS = 1000000000;
enum { STAMP_BYTES = 64 };

/* Parameters of the terminal's escape sequence SGR. */
#define COLOUR_TIME "2"
#define COLOUR_WRITER "36"
#define COLOUR_EVENT "1"
#define COLOUR_FIELD "34"
#define COLOUR_WARNING "1;31"

struct text_encoder {
	struct relay_encoder encoder;
	uint32_t times; /* enum relay_export_times */
	bool has_colours, is_brief, marks_late, shows_errors;
	bool has_first;
	uint64_t first;          /* the time of the first line */
	uint64_t second;         /* the time in `stamp`, seconds since 1970 */
	char stamp[STAMP_BYTES]; /* "": none yet */
};

/* --- colours --- */

static void begin_colour(const struct text_encoder *text, struct relay_output *output, const char *colour)
{
	if (!text->has_colours)
		return;
	relay_put_text(output, "\033[");
	relay_put_text(output, colour);
	relay_put_byte(output, 'm');
}

static void end_colour(const struct text_encoder *text, struct relay_output *output)
{
	if (text->has_colours)
		relay_put_text(output, "\033[0m");
}

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
	begin_colour(text, output, COLOUR_TIME);
	relay_put_text(output, text->is_brief ? "" : "[");
	if (text->times == RELAY_EXPORT_RELATIVE) {
		is_negative = time < text->first;
		time = is_negative ? text->first - time : time - text->first;
	}
	if (is_negative)
		relay_put_byte(output, '-');
	put_seconds(text, output, time / NS);
	relay_put_byte(output, '.');
	if (text->is_brief)
		relay_put_padded(output, time % NS / 1000, 6);
	else
		relay_put_padded(output, time % NS, 9);
	relay_put_text(output, text->is_brief ? "" : "]");
	end_colour(text, output);
}

void relay_put_line_time(struct relay_encoder *encoder, struct relay_output *output, uint64_t time)
{
	put_time((struct text_encoder *)encoder, output, time);
}

/* --- fields --- */

static void put_name(const struct text_encoder *text, struct relay_output *output, const char *before, const char *name,
                     size_t length)
{
	relay_put_text(output, before);
	begin_colour(text, output, COLOUR_FIELD);
	relay_put(output, name, length);
	end_colour(text, output);
	relay_put_text(output, text->is_brief ? "=" : " = ");
}

static void end_structs(const struct text_encoder *text, struct relay_output *output, uint32_t n)
{
	for (; n; n--)
		relay_put_text(output, text->is_brief ? "}" : " }");
}

static void put_fields(const struct text_encoder *text, struct relay_output *output, const struct relay_event *event)
{
	struct relay_fields fields = relay_event_fields(event);
	struct relay_value value;
	size_t length;
	const char *before = text->is_brief ? "" : "{ ", *between = text->is_brief ? " " : ", ";
	while (relay_fields_next(&fields, &value)) {
		const char *at = value.begun, *name;
		end_structs(text, output, value.n_ended);
		for (; (name = relay_struct_next(&value, &at, &length)); before = text->is_brief ? "{" : "{ ")
			put_name(text, output, before, name, length);
		put_name(text, output, before, value.own_name, strlen(value.own_name));
		if (!value.label)
			value.label = relay_mark_letter(&value);
		relay_put_value(output, &value, RELAY_ESCAPE_TEXT);
		before = between;
	}
	end_structs(text, output, fields.depth);
	if (!text->is_brief)
		relay_put_text(output, before == between ? " }" : "{ }");
}

/* --- lines --- */

static void put_writer(const struct text_encoder *text, struct relay_output *output, const struct relay_event *event)
{
	const struct relay_traced *traced = event->stream->traced;
	begin_colour(text, output, COLOUR_WRITER);
	if (traced->host) {
		relay_put_string(output, traced->host->name, strlen(traced->host->name), RELAY_ESCAPE_TEXT);
		relay_put_byte(output, ' ');
	}
	relay_put_string(output, traced->name, strlen(traced->name), RELAY_ESCAPE_TEXT);
	if (!event->lost || traced->pid)
		relay_put_number(output, "-", relay_event_pid(event));
	if (traced->vtid_at >= 0 && !event->lost)
		relay_put_number(output, "/", relay_event_tid(event));
	end_colour(text, output);
	if (event->stream->cpu == RELAY_STATE_CPU)
		relay_put_text(output, " state");
	else if (relay_is_of_cpu(event) && (!text->is_brief || event->lost))
		relay_put_number(output, " cpu", event->stream->cpu);
	relay_put_byte(output, ' ');
}

/* what: " event" or " record" */
static void put_loss(struct text_encoder *text, struct relay_output *output, const struct relay_event *event,
                     const char *what)
{
	begin_colour(text, output, COLOUR_WARNING);
	relay_put_number(output, "lost ", event->lost);
	relay_put_text(output, what);
	relay_put_text(output, event->lost == 1 ? "" : "s");
	end_colour(text, output);
	relay_put_text(output, " since ");
	put_time(text, output, event->since);
	relay_put_cause(output, ": ", event, "");
}

static void put_late(const struct text_encoder *text, struct relay_output *output, const struct relay_event *event)
{
	if (!text->marks_late || !event->is_late)
		return;
	begin_colour(text, output, COLOUR_WARNING);
	relay_put_text(output, " late");
	end_colour(text, output);
}

static void put_level(struct relay_output *output, const struct relay_event *event)
{
	const char *level = relay_event_level(event);
	if (!level)
		return;
	relay_put_text(output, level);
	relay_put_byte(output, ' ');
}

static void put_what(const struct text_encoder *text, struct relay_output *output, const struct relay_event *event)
{
	put_level(output, event);
	begin_colour(text, output, COLOUR_EVENT);
	relay_put_event_name(output, event);
	end_colour(text, output);
	relay_put_text(output, ": ");
	put_fields(text, output, event);
	put_late(text, output, event);
}

static void put_error(struct relay_output *output, uint64_t error)
{
	const uint64_t us = error / 1000 + (error % 1000 != 0);
	relay_put_text(output, " +-");
	if (error == UINT64_MAX) {
		relay_put_byte(output, '?');
		return;
	}
	relay_put_u64(output, us / 1000000);
	relay_put_byte(output, '.');
	relay_put_padded(output, us % 1000000, 6);
}

static void begin_line(struct text_encoder *text, struct relay_output *output, const struct relay_event *event)
{
	if (!text->has_first)
		text->first = event->time;
	text->has_first = true;
	put_time(text, output, event->time);
	if (text->shows_errors && event->stream->traced->map)
		put_error(output, relay_event_error(event));
}

static void put_event(struct relay_encoder *encoder, struct relay_output *output, const struct relay_event *event)
{
	struct text_encoder *text = (struct text_encoder *)encoder;
	begin_line(text, output, event);
	relay_put_byte(output, ' ');
	put_writer(text, output, event);
	if (event->lost)
		put_loss(text, output, event, " event");
	else
		put_what(text, output, event);
	relay_put_byte(output, '\n');
}

static void put_text(const struct text_encoder *text, struct relay_output *output, const struct relay_event *event)
{
	struct relay_value record = relay_record_of(event);
	put_late(text, output, event);
	relay_put_text(output, ": ");
	if (record.length && record.data[record.length - 1] == '\n')
		record.length--;
	relay_put_string(output, record.data, record.length, RELAY_ESCAPE_LINE);
}

static void put_record(struct relay_encoder *encoder, struct relay_output *output, const struct relay_event *event)
{
	struct text_encoder *text = (struct text_encoder *)encoder;
	begin_line(text, output, event);
	if (!text->is_brief || event->lost) {
		begin_colour(text, output, COLOUR_WRITER);
		relay_put_number(output, " cpu", event->stream->cpu);
		end_colour(text, output);
	}
	if (event->lost) {
		relay_put_byte(output, ' ');
		put_loss(text, output, event, " record");
	} else {
		put_text(text, output, event);
	}
	relay_put_byte(output, '\n');
}

struct relay_encoder *relay_encoder_text(const struct relay_export_options *options)
{
	struct text_encoder *text = malloc(sizeof(*text));
	if (!text)
		return NULL;
	*text =
	    (struct text_encoder){.encoder = {.event = options->format == RELAY_EXPORT_TEXT ? put_event : put_record},
	                          .times = options->times,
	                          .has_colours = options->has_colours,
	                          .is_brief = options->is_brief,
	                          .marks_late = options->marks_late,
	                          .shows_errors = options->shows_errors};
	return &text->encoder;
}
