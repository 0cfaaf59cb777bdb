/* SPDX-License-Identifier: MIT */
/*
 * RELAY_EXPORT_CHROME: Chrome's trace events in JSON. This format has no tracks but those of threads. So each track is
 * written as a thread: the track of a thread with the thread's number, that of a process with the process's number,
 * others with numbers that no thread has. Times are microseconds of CLOCK_MONOTONIC.
 *
 * It has no machines either. So processes and threads of the second one have numbers that are OF_HOST larger, those of the
 * third one twice that, and so on. What is known of the machines' clocks is in otherData.
 */
#include "merge/export.h"
#include "merge/tracks.h"

#include <stdlib.h>

/* The kernel gives threads numbers up to 1 << 22. */
enum { FIRST_TID = 5000000, OF_HOST = 1 << 23 };

struct chrome_encoder {
	struct relay_encoder encoder;
	struct relay_tracks tracks;
	struct relay_output *output; /* while an event is written */
	uint64_t mono_offset;
	bool has_any;
};

/* What is added to the numbers of a machine's processes and threads. */
static uint64_t base_of(const struct relay_host *host)
{
	return host ? (uint64_t)host->number * OF_HOST : 0;
}

static uint64_t tid_of(const struct relay_track *track)
{
	if (track->kind == RELAY_TRACK_PROCESS)
		return track->pid;
	return track->kind == RELAY_TRACK_THREAD ? track->scope : FIRST_TID + track->number;
}

/* {"ph":"...","pid":..,"tid":.. */
static void begin_object(struct chrome_encoder *chrome, char phase, const struct relay_track *track)
{
	struct relay_output *output = chrome->output;
	relay_put_text(output, chrome->has_any ? ",\n{\"ph\":\"" : "{\"ph\":\"");
	chrome->has_any = true;
	relay_put_byte(output, (unsigned char)phase);
	relay_put_number(output, "\",\"pid\":", base_of(track->host) + track->pid);
	relay_put_number(output, ",\"tid\":", base_of(track->host) + tid_of(track));
}

static void announce(void *user, const struct relay_track *track)
{
	struct chrome_encoder *chrome = user;
	const bool is_process = track->kind == RELAY_TRACK_PROCESS;
	const bool has_name = track->kind != RELAY_TRACK_THREAD || track->name_length;
	if (!has_name || track->kind == RELAY_TRACK_COUNTER)
		return;
	begin_object(chrome, 'M', track);
	relay_put_text(chrome->output, is_process ? ",\"name\":\"process_name\",\"args\":{\"name\":"
	                                          : ",\"name\":\"thread_name\",\"args\":{\"name\":");
	relay_put_byte(chrome->output, '"');
	relay_put_track_name(chrome->output, track, RELAY_ESCAPE_JSON);
	relay_put_text(chrome->output, "\"}}");
}

static void put_microseconds(struct relay_output *output, uint64_t ns)
{
	relay_put_number(output, ",\"ts\":", ns / 1000);
	relay_put_byte(output, '.');
	relay_put_padded(output, ns % 1000, 3);
}

static void put_name(struct relay_output *output, const struct relay_event *event, const struct relay_mark *mark)
{
	relay_put_text(output, ",\"name\":");
	if (mark->type == 'C') {
		relay_put_json_string(output, mark->track->name, mark->track->name_length);
	} else if (mark->name.length) {
		relay_put_json_string(output, mark->name.data, mark->name.length);
	} else if (event->lost) {
		relay_put_text(output, "\"lost\"");
	} else {
		relay_put_byte(output, '"');
		relay_put_event_name(output, event);
		relay_put_byte(output, '"');
	}
}

static void put_arguments(struct relay_output *output, const struct relay_event *event, const struct relay_mark *mark)
{
	relay_put_text(output, ",\"args\":");
	if (event->lost) {
		relay_put_number(output, "{\"events\":", event->lost);
		if (relay_is_of_cpu(event))
			relay_put_number(output, ",\"cpu\":", event->stream->cpu);
		relay_put_cause(output, ",\"cause\":\"", event, "\"");
		relay_put_byte(output, '}');
	} else if (mark->type == 'C') {
		relay_put_text(output, "{\"value\":");
		relay_put_value(output, &mark->counter, RELAY_ESCAPE_JSON);
		relay_put_byte(output, '}');
	} else {
		relay_put_json_fields(output, event, mark->has_roles ? relay_is_role : NULL);
	}
}

static void put_event(struct relay_encoder *encoder, struct relay_output *output, const struct relay_event *event)
{
	struct chrome_encoder *chrome = (struct chrome_encoder *)encoder;
	chrome->output = output;
	const struct relay_mark mark = relay_mark_of(&chrome->tracks, event);
	if (!mark.track) {
		output->has_failed = true;
		return;
	}
	begin_object(chrome, mark.type == 'I' ? 'i' : mark.type, mark.track);
	put_microseconds(output, event->time > chrome->mono_offset ? event->time - chrome->mono_offset : 0);
	if (mark.type == 'I')
		relay_put_text(output, ",\"s\":\"t\"");
	/* No name: viewers end the last slice then; with a name, only a slice of the same name. */
	if (mark.type != 'E')
		put_name(output, event, &mark);
	put_arguments(output, event, &mark);
	relay_put_byte(output, '}');
}

static void begin(struct relay_encoder *encoder, struct relay_output *output)
{
	(void)encoder;
	relay_put_text(output, "{\"traceEvents\":[\n");
}

static void end(struct relay_encoder *encoder, struct relay_output *output)
{
	const struct chrome_encoder *chrome = (struct chrome_encoder *)encoder;
	const struct relay_host *host;
	relay_put_text(output, "\n],\"displayTimeUnit\":\"ns\"");
	for (uint32_t i = 0; (host = relay_merge_host(encoder->merge, i)); i++) {
		if (i == 0)
			relay_put_number(output, ",\"otherData\":{\"since_ns\":", chrome->mono_offset);
		relay_put_text(output, i == 0 ? ",\"hosts\":[" : ",");
		relay_put_json_host(output, host);
	}
	relay_put_text(output, relay_merge_host(encoder->merge, 0) ? "]}}\n" : "}\n");
}

static void fini(struct relay_encoder *encoder)
{
	relay_tracks_free(&((struct chrome_encoder *)encoder)->tracks);
}

struct relay_encoder *relay_encoder_chrome(const struct relay_export_options *options)
{
	struct chrome_encoder *chrome = malloc(sizeof(*chrome));
	if (!chrome)
		return NULL;
	*chrome = (struct chrome_encoder){.encoder = {.begin = begin, .event = put_event, .end = end, .fini = fini},
	                                  .tracks = {.announce = announce, .user = chrome},
	                                  .mono_offset = options->mono_offset};
	return &chrome->encoder;
}
