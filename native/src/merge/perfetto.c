/* SPDX-License-Identifier: MIT */
/*
 * RELAY_EXPORT_PERFETTO: a Perfetto trace, TracePackets in protobuf (protos/perfetto/trace in Perfetto's sources). The
 * packets of sequence 1 have the clocks and the descriptors of tracks. The packets of each stream are a sequence of their
 * own, on which the names of events and fields are interned. After a loss the sequence begins again, with
 * previous_packet_dropped.
 *
 * Times are ns of CLOCK_MONOTONIC. Traces do not record CLOCK_BOOTTIME; it is written as equal to CLOCK_MONOTONIC, from
 * which it differs by the time for which the machine was suspended.
 *
 * Of several machines, each is one of Perfetto's, with its machine_id in all its packets, the first one without, as that of
 * Perfetto's service is; and times are ns of CLOCK_REALTIME. What is known of a machine's clock is an instant on a track of
 * its own, at the time of the machine's first event.
 */
#include "merge/export.h"
#include "merge/grown.h"
#include "merge/perfetto_fields.h"
#include "merge/protobuf.h"
#include "merge/tracks.h"
#include "trace/field_types.h"

enum { CLOCK_ID_REALTIME = 1, CLOCK_ID_MONOTONIC = 3, CLOCK_ID_BOOTTIME = 6 };
enum { STATE_CLEARED = 1, STATE_NEEDED = 2 };
enum { FIRST_SEQUENCE = 1, FIRST_OF_STREAMS = 2 };
/* The uuids of machines' clocks; those of other tracks are less. */
static const uint64_t FIRST_OF_HOSTS = 1ull << 32;

/* The state of a stream's sequence. */
struct sequence {
	bool is_begun;
	uint64_t *interned; /* a bit for each event of the process, set if its names are interned */
};

struct perfetto_encoder {
	struct relay_encoder encoder;
	struct relay_tracks tracks;
	struct relay_output *output; /* while an event is written */
	struct sequence *sequences;
	size_t n_sequences;
	uint64_t mono_offset;
	bool *told_hosts; /* by their numbers, whether their clocks' tracks are written */
	size_t n_told;
};

/* --- clocks and tracks --- */

static uint32_t clock_id_of(const struct relay_host *host)
{
	return host ? CLOCK_ID_REALTIME : CLOCK_ID_MONOTONIC;
}

static void put_machine(struct relay_output *output, const struct relay_host *host)
{
	if (host && host->number)
		put_number(output, PACKET_MACHINE, host->number);
}

static void put_clock(struct relay_output *output, uint32_t id, uint64_t time)
{
	size_t clock = begin_message(output, SNAPSHOT_CLOCK);
	put_number(output, CLOCK_ID, id);
	put_number(output, CLOCK_TIME, time);
	end_message(output, clock);
}

/* Begin a packet of sequence 1, of a machine. Returns the argument `begin` of end_message(). */
static size_t begin_packet(struct relay_output *output, const struct relay_host *host)
{
	size_t packet = begin_message(output, TRACE_PACKET);
	put_number(output, PACKET_SEQUENCE, FIRST_SEQUENCE);
	put_machine(output, host);
	return packet;
}

static void put_clocks(struct relay_output *output, const struct perfetto_encoder *perfetto,
                       const struct relay_host *host)
{
	const uint64_t second = 1000000000;
	size_t packet = begin_packet(output, host);
	size_t snapshot = begin_message(output, PACKET_CLOCK_SNAPSHOT);
	put_clock(output, CLOCK_ID_REALTIME, perfetto->mono_offset + second);
	if (!host) {
		put_clock(output, CLOCK_ID_MONOTONIC, second);
		put_clock(output, CLOCK_ID_BOOTTIME, second);
	}
	put_number(output, SNAPSHOT_PRIMARY, clock_id_of(host));
	end_message(output, snapshot);
	end_message(output, packet);
}

static void put_system_info(struct relay_output *output, const struct relay_host *host)
{
	size_t packet = begin_packet(output, host);
	size_t info = begin_message(output, PACKET_SYSTEM_INFO);
	size_t utsname = begin_message(output, SYSTEM_UTSNAME);
	put_string(output, UTSNAME_SYSNAME, "Linux", 5);
	end_message(output, utsname);
	put_string(output, SYSTEM_MACHINE_NAME, host->name, strlen(host->name));
	end_message(output, info);
	end_message(output, packet);
}

static void begin(struct relay_encoder *encoder, struct relay_output *output)
{
	struct perfetto_encoder *perfetto = (struct perfetto_encoder *)encoder;
	const struct relay_host *host = relay_merge_host(encoder->merge, 0);
	if (!host)
		put_clocks(output, perfetto, NULL);
	else
		perfetto->mono_offset = 0;
	for (uint32_t i = 0; (host = relay_merge_host(encoder->merge, i)); i++) {
		put_clocks(output, perfetto, host);
		put_system_info(output, host);
	}
}

static void put_process(struct relay_output *output, const struct relay_track *track)
{
	size_t process = begin_message(output, TRACK_PROCESS);
	put_number(output, PROCESS_PID, track->pid);
	size_t name = begin_message(output, PROCESS_NAME);
	relay_put_track_name(output, track, RELAY_ESCAPE_INVALID);
	end_message(output, name);
	end_message(output, process);
}

static void put_thread(struct relay_output *output, const struct relay_track *track)
{
	size_t thread = begin_message(output, TRACK_THREAD);
	put_number(output, THREAD_PID, track->pid);
	put_number(output, THREAD_TID, track->scope);
	if (track->name_length)
		put_string(output, THREAD_NAME, track->name, track->name_length);
	end_message(output, thread);
}

static void announce(void *user, const struct relay_track *track)
{
	struct relay_output *output = ((struct perfetto_encoder *)user)->output;
	size_t packet = begin_packet(output, track->host);
	size_t descriptor = begin_message(output, PACKET_TRACK);
	put_number(output, TRACK_UUID, track->number);
	if (track->parent)
		put_number(output, TRACK_PARENT, track->parent->number);
	if (track->kind == RELAY_TRACK_PROCESS) {
		put_process(output, track);
	} else if (track->kind == RELAY_TRACK_THREAD) {
		put_thread(output, track);
	} else {
		size_t name = begin_message(output, TRACK_NAME);
		relay_put_track_name(output, track, RELAY_ESCAPE_INVALID);
		end_message(output, name);
	}
	if (track->kind == RELAY_TRACK_COUNTER)
		end_message(output, begin_message(output, TRACK_COUNTER));
	end_message(output, descriptor);
	end_message(output, packet);
}

/* --- sequences --- */

static struct sequence *sequence_of(struct perfetto_encoder *perfetto, const struct relay_stream *stream)
{
	const size_t words = stream->traced->layouts->n / 64 + 1;
	struct sequence *sequences =
	    relay_grown(perfetto->sequences, &perfetto->n_sequences, stream->number, sizeof(*sequences));
	if (!sequences)
		return NULL;
	perfetto->sequences = sequences;
	struct sequence *sequence = &sequences[stream->number];
	if (!sequence->interned)
		sequence->interned = calloc(words, sizeof(*sequence->interned));
	return sequence->interned ? sequence : NULL;
}

/* Begin a sequence, or begin it again because events were lost. */
static void begin_sequence(struct relay_output *output, struct sequence *sequence, const struct relay_event *event)
{
	memset(sequence->interned, 0, (event->stream->traced->layouts->n / 64 + 1) * sizeof(*sequence->interned));
	put_number(output, PACKET_FLAGS, STATE_CLEARED | STATE_NEEDED);
	if (event->lost)
		put_number(output, PACKET_DROPPED, 1);
	size_t defaults = begin_message(output, PACKET_DEFAULTS);
	put_number(output, DEFAULTS_CLOCK, clock_id_of(event->stream->traced->host));
	end_message(output, defaults);
	sequence->is_begun = true;
}

/* --- events --- */

/* Intern a name, after `before` and a colon if `before` is not NULL, with the number iid. */
static void put_interned(struct relay_output *output, uint32_t field, uint64_t iid, const char *before,
                         const char *name)
{
	size_t entry = begin_message(output, field);
	put_number(output, INTERNED_IID, iid);
	size_t text = begin_message(output, INTERNED_NAME);
	if (before) {
		relay_put_text(output, before);
		relay_put_byte(output, ':');
	}
	relay_put_text(output, name);
	end_message(output, text);
	end_message(output, entry);
}

/* The numbers of interned names, of an event and of its fields; no two events of a process have the same. */
static uint64_t iid_of(const struct relay_trace_event *declared)
{
	return declared->id + 1;
}

static uint64_t iid_of_field(const struct relay_trace_event *declared, uint64_t field)
{
	return (declared->id + 1) << 17 | field;
}

static void intern(struct relay_output *output, struct sequence *sequence, const struct relay_trace_event *declared)
{
	const uint64_t bit = 1ull << declared->id % 64;
	uint64_t *word = &sequence->interned[declared->id / 64];
	if (*word & bit)
		return;
	*word |= bit;
	size_t interned = begin_message(output, PACKET_INTERNED);
	put_interned(output, INTERNED_EVENT_NAME, iid_of(declared), declared->provider, declared->name);
	for (uint32_t i = 0; i < declared->n_fields; i++)
		put_interned(output, INTERNED_ANNOTATION_NAME, iid_of_field(declared, i), NULL,
		             relay_field_own_name(declared->fields[i].name));
	end_message(output, interned);
}

static void put_single(struct relay_output *output, const struct relay_value *value)
{
	size_t bytes;
	switch (value->type->kind) {
	case RELAY_FIELD_UNSIGNED:
		put_number(output, ANNOTATION_UINT, value->u);
		break;
	case RELAY_FIELD_SIGNED:
		put_number(output, ANNOTATION_INT, (uint64_t)value->i);
		break;
	case RELAY_FIELD_HEX:
		put_number(output, ANNOTATION_POINTER, value->u);
		break;
	case RELAY_FIELD_REAL:
		put_double(output, ANNOTATION_DOUBLE, value->d);
		break;
	case RELAY_FIELD_STRING:
		put_string(output, ANNOTATION_STRING, value->data, value->length);
		break;
	case RELAY_FIELD_BYTES:
		bytes = begin_message(output, ANNOTATION_STRING);
		relay_put_bytes(output, value->data, value->length);
		end_message(output, bytes);
		break;
	}
}

static void put_value(struct relay_output *output, const struct relay_value *value)
{
	if (value->label) {
		put_string(output, ANNOTATION_STRING, value->label, strlen(value->label));
		return;
	}
	if (!value->is_array)
		put_single(output, value);
	for (size_t i = 0; value->is_array && i < value->length; i++) {
		const struct relay_value one = relay_array_at(value, i);
		size_t annotation = begin_message(output, ANNOTATION_ARRAY);
		put_single(output, &one);
		end_message(output, annotation);
	}
}

/* Begin an annotation that is in `depth` structs. */
static size_t begin_annotation(struct relay_output *output, uint32_t depth)
{
	return begin_message(output, depth ? ANNOTATION_DICTIONARY : EVENT_ANNOTATION);
}

static void put_annotations(struct relay_output *output, const struct relay_event *event, const struct relay_mark *mark)
{
	struct relay_fields fields = relay_event_fields(event);
	struct relay_value value;
	size_t structs[RELAY_TRACE_DEPTH_MAX], length;
	uint32_t depth = 0;
	for (uint32_t i = 0; relay_fields_next(&fields, &value); i++) {
		const char *at = value.begun, *name;
		for (uint32_t n = value.n_ended; n; n--)
			end_message(output, structs[--depth]);
		if (mark->has_roles && relay_is_role(value.name))
			continue;
		for (; (name = relay_struct_next(&value, &at, &length)); depth++) {
			structs[depth] = begin_annotation(output, depth);
			put_string(output, ANNOTATION_NAME, name, length);
		}
		size_t annotation = begin_annotation(output, depth);
		put_number(output, ANNOTATION_IID, iid_of_field(event->declared, i));
		put_value(output, &value);
		end_message(output, annotation);
	}
	while (depth)
		end_message(output, structs[--depth]);
}

static void put_named_number(struct relay_output *output, const char *name, uint64_t number)
{
	size_t annotation = begin_message(output, EVENT_ANNOTATION);
	put_string(output, ANNOTATION_NAME, name, strlen(name));
	put_number(output, ANNOTATION_UINT, number);
	end_message(output, annotation);
}

static void put_named_text(struct relay_output *output, const char *name, const char *text)
{
	size_t annotation = begin_message(output, EVENT_ANNOTATION);
	put_string(output, ANNOTATION_NAME, name, strlen(name));
	put_string(output, ANNOTATION_STRING, text, strlen(text));
	end_message(output, annotation);
}

static void put_loss(struct relay_output *output, const struct relay_event *event)
{
	const char *cause = relay_loss_cause_name(event->cause);
	put_string(output, EVENT_NAME, "lost", 4);
	put_named_number(output, "events", event->lost);
	if (relay_is_of_cpu(event))
		put_named_number(output, "cpu", event->stream->cpu);
	if (cause)
		put_named_text(output, "cause", cause);
}

static void put_counter(struct relay_output *output, const struct relay_value *value)
{
	if (value->type->kind == RELAY_FIELD_REAL)
		put_double(output, EVENT_COUNTER_DOUBLE, value->d);
	else
		put_number(output, EVENT_COUNTER,
		           value->type->kind == RELAY_FIELD_SIGNED ? (uint64_t)value->i : value->u);
}

static void put_name(struct relay_output *output, const struct relay_event *event, const struct relay_mark *mark)
{
	if (mark->name.length)
		put_string(output, EVENT_NAME, mark->name.data, mark->name.length);
	else
		put_number(output, EVENT_NAME_IID, iid_of(event->declared));
}

static uint64_t event_type_of(const struct relay_mark *mark)
{
	switch (mark->type) {
	case 'B':
		return TYPE_BEGIN;
	case 'E':
		return TYPE_END;
	case 'C':
		return TYPE_COUNTER;
	default:
		return TYPE_INSTANT;
	}
}

static void put_track_event(struct relay_output *output, const struct relay_event *event, const struct relay_mark *mark)
{
	size_t message = begin_message(output, PACKET_TRACK_EVENT);
	put_number(output, EVENT_TYPE, event_type_of(mark));
	put_number(output, EVENT_TRACK, mark->track->number);
	if (event->lost) {
		put_loss(output, event);
	} else if (mark->type == 'C') {
		put_counter(output, &mark->counter);
	} else {
		if (mark->type != 'E')
			put_name(output, event, mark);
		put_annotations(output, event, mark);
	}
	end_message(output, message);
}

static void put_error(struct relay_output *output, const char *name, uint64_t error)
{
	if (error != UINT64_MAX) {
		put_named_number(output, name, error);
		return;
	}
	size_t annotation = begin_message(output, EVENT_ANNOTATION);
	put_string(output, ANNOTATION_NAME, name, strlen(name));
	put_string(output, ANNOTATION_STRING, "unknown", 7);
	end_message(output, annotation);
}

/* Write what is known of a machine's clock, at the time of its first event. */
static void put_host(struct relay_output *output, const struct relay_host *host, uint64_t time)
{
	static const char name[] = "clock";
	size_t packet = begin_packet(output, host);
	size_t descriptor = begin_message(output, PACKET_TRACK);
	put_number(output, TRACK_UUID, FIRST_OF_HOSTS + host->number);
	put_string(output, TRACK_NAME, name, strlen(name));
	end_message(output, descriptor);
	end_message(output, packet);
	packet = begin_packet(output, host);
	put_number(output, PACKET_TIMESTAMP, time);
	put_number(output, PACKET_CLOCK, clock_id_of(host));
	size_t message = begin_message(output, PACKET_TRACK_EVENT);
	put_number(output, EVENT_TYPE, TYPE_INSTANT);
	put_number(output, EVENT_TRACK, FIRST_OF_HOSTS + host->number);
	put_string(output, EVENT_NAME, name, strlen(name));
	size_t annotation = begin_message(output, EVENT_ANNOTATION);
	put_string(output, ANNOTATION_NAME, "host", 4);
	put_string(output, ANNOTATION_STRING, host->name, strlen(host->name));
	end_message(output, annotation);
	put_error(output, "max_error_ns", host->max_error);
	put_error(output, "est_error_ns", host->est_error);
	end_message(output, message);
	end_message(output, packet);
}

/* Return whether this is the first call for this machine. false also, if there is no memory: has_failed is set. */
static bool is_first_of(struct perfetto_encoder *perfetto, const struct relay_host *host)
{
	bool *told = relay_grown(perfetto->told_hosts, &perfetto->n_told, host->number, sizeof(*told));
	perfetto->output->has_failed |= !told;
	if (!told)
		return false;
	perfetto->told_hosts = told;
	const bool is_first = !told[host->number];
	told[host->number] = true;
	return is_first;
}

static void put_event(struct relay_encoder *encoder, struct relay_output *output, const struct relay_event *event)
{
	struct perfetto_encoder *perfetto = (struct perfetto_encoder *)encoder;
	const struct relay_host *host = event->stream->traced->host;
	perfetto->output = output;
	if (host && is_first_of(perfetto, host))
		put_host(output, host, event->time);
	const struct relay_mark mark = relay_mark_of(&perfetto->tracks, event);
	struct sequence *sequence = sequence_of(perfetto, event->stream);
	if (!mark.track || !sequence) {
		output->has_failed = true;
		return;
	}
	size_t packet = begin_message(output, TRACE_PACKET);
	put_number(output, PACKET_TIMESTAMP,
	           event->time > perfetto->mono_offset ? event->time - perfetto->mono_offset : 0);
	put_number(output, PACKET_SEQUENCE, FIRST_OF_STREAMS + (uint64_t)event->stream->number);
	put_machine(output, host);
	if (!sequence->is_begun || event->lost)
		begin_sequence(output, sequence, event);
	else
		put_number(output, PACKET_FLAGS, STATE_NEEDED);
	if (!event->lost)
		intern(output, sequence, event->declared);
	put_track_event(output, event, &mark);
	end_message(output, packet);
}

static void fini(struct relay_encoder *encoder)
{
	struct perfetto_encoder *perfetto = (struct perfetto_encoder *)encoder;
	relay_tracks_free(&perfetto->tracks);
	for (size_t i = 0; i < perfetto->n_sequences; i++)
		free(perfetto->sequences[i].interned);
	free(perfetto->sequences);
	free(perfetto->told_hosts);
}

struct relay_encoder *relay_encoder_perfetto(const struct relay_export_options *options)
{
	struct perfetto_encoder *perfetto = malloc(sizeof(*perfetto));
	if (!perfetto)
		return NULL;
	*perfetto = (struct perfetto_encoder){.encoder = {.begin = begin, .event = put_event, .fini = fini},
	                                      .tracks = {.announce = announce, .user = perfetto},
	                                      .mono_offset = options->mono_offset};
	return &perfetto->encoder;
}
