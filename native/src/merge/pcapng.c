/* SPDX-License-Identifier: MIT */
/*
 * RELAY_EXPORT_PCAPNG and RELAY_EXPORT_RECORDS_PCAPNG: pcapng (draft-ietf-opsawg-pcapng), the format of Wireshark. Each
 * block is |type|length|...|length|, little-endian, and the output is whole blocks:
 *
 *     Section Header          first; and again after INTERFACES_MAX interfaces, whose numbers then begin anew
 *     Interface Description   before the first block that has its number: an event of a process (if_name "app-42 server:request"),
 *                             or a buffer ("app-42 cpu0", of channels "cpu0"); if_description is an object of JSON
 *     Enhanced Packet         an event: its context and fields; or a record
 *     Interface Statistics    a loss: two, of the times between which events were lost; isb_osdrop is what the buffer has
 *                             lost since the section began, and the opt_comment of the later one the cause, if it is known
 *
 * Objects in if_description:
 *
 *     {"process":"app","pid":42,"event":"server:request","level":"err",
 *      "fields":[{"name":"_vtid","type":"u32"},{"name":"state","type":"u8","labels":{"idle":0}},{"name":"at.x","type":"i32[2]"}]}
 *     {"process":"app","pid":42,"cpu":0}
 *     {"cpu":0}                                                                                      of a channel
 *
 * There is no pid if several processes share the buffer; then each event has the field _vpid. Packets of events have the
 * number of their CPU in epb_queue. The opt_comment of a late one is "late".
 */
#include "merge/export.h"
#include "trace/field_types.h"

#include <stdlib.h>

enum { BLOCK_SECTION = 0x0a0d0d0a, BLOCK_INTERFACE = 1, BLOCK_STATISTICS = 5, BLOCK_PACKET = 6 };
enum { SECTION_MAGIC = 0x1a2b3c4d, VERSION_MAJOR = 1, LINKTYPE_USER0 = 147, NS_DIGITS = 9 };
enum { OPTION_END = 0, OPTION_COMMENT = 1, OPTION_BYTES_MAX = UINT16_MAX };
enum { SECTION_APPLICATION = 4, INTERFACE_NAME = 2, INTERFACE_DESCRIPTION = 3, INTERFACE_TIMES = 9 };
enum { PACKET_QUEUE = 6, STATISTICS_LOST = 7 };

/* The most interfaces of a section. They take memory here and in those who read the output. */
enum { INTERFACES_MAX = 4096, N_PLACES = 2 * INTERFACES_MAX };

/* An interface: an event of a process, by the event's id, or a buffer, by its CPU. */
struct interface {
	uint32_t identity; /* of the process */
	uint32_t id;
	uint64_t lost; /* of a buffer: since the section began */
	bool is_buffer;
	uint32_t number; /* from 1; 0: the place is free */
};

struct pcapng_encoder {
	struct relay_encoder encoder;
	bool has_records, marks_late;
	uint32_t n;
	struct interface at[N_PLACES]; /* a hash table */
};

/* --- blocks --- */

static void put_u32(struct relay_output *output, uint32_t number)
{
	relay_put(output, &number, sizeof(number));
}

/* The upper half comes first. */
static void put_time(struct relay_output *output, uint64_t time)
{
	put_u32(output, (uint32_t)(time >> 32));
	put_u32(output, (uint32_t)time);
}

static void pad(struct relay_output *output, size_t length)
{
	relay_put(output, "\0\0\0", -length % sizeof(uint32_t));
}

/* Begin a block. Returns the argument `begin` of end_block(). */
static size_t begin_block(struct relay_output *output, uint32_t type)
{
	const size_t begin = output->length;
	put_u32(output, type);
	put_u32(output, 0);
	return begin;
}

/* End a block of a multiple of four bytes: store its length at its beginning and its end. */
static void end_block(struct relay_output *output, size_t begin)
{
	const uint32_t length = (uint32_t)(output->length - begin + sizeof(length));
	put_u32(output, length);
	if (!output->has_failed)
		memcpy(output->at + begin + sizeof(uint32_t), &length, sizeof(length));
}

static void put_option(struct relay_output *output, uint16_t code, const void *value, uint16_t length)
{
	const uint16_t head[] = {code, length};
	relay_put(output, head, sizeof(head));
	relay_put(output, value, length);
	pad(output, length);
}

/* Begin an option whose length is not known. Returns the argument `begin` of end_option(). */
static size_t begin_option(struct relay_output *output, uint16_t code)
{
	put_option(output, code, NULL, 0);
	return output->length;
}

/* End an option. false: it is too long, and has been removed. */
static bool end_option(struct relay_output *output, size_t begin)
{
	const size_t length = output->length - begin;
	const uint16_t stored = (uint16_t)length;
	if (output->has_failed)
		return true;
	if (length > OPTION_BYTES_MAX) {
		output->length = begin - sizeof(uint32_t);
		return false;
	}
	memcpy(output->at + begin - sizeof(stored), &stored, sizeof(stored));
	pad(output, length);
	return true;
}

/* --- declarations --- */

static void begin_section(struct pcapng_encoder *pcapng, struct relay_output *output)
{
	static const char application[] = "relayfs";
	const uint16_t version[] = {VERSION_MAJOR, 0};
	const uint64_t length = UINT64_MAX; /* not known */
	size_t section = begin_block(output, BLOCK_SECTION);
	put_u32(output, SECTION_MAGIC);
	relay_put(output, version, sizeof(version));
	relay_put(output, &length, sizeof(length));
	put_option(output, SECTION_APPLICATION, application, sizeof(application) - 1);
	put_option(output, OPTION_END, NULL, 0);
	end_block(output, section);
	memset(pcapng->at, 0, sizeof(pcapng->at));
	pcapng->n = 0;
}

static void put_labels(struct relay_output *output, const struct relay_trace_enum *labels, bool is_signed)
{
	relay_put_text(output, ",\"labels\":{");
	for (uint32_t i = 0; i < labels->n_labels; i++) {
		const struct relay_trace_label *label = &labels->labels[i];
		if (i)
			relay_put_byte(output, ',');
		relay_put_json_string(output, label->name, strlen(label->name));
		relay_put_byte(output, ':');
		if (is_signed)
			relay_put_i64(output, label->value);
		else
			relay_put_u64(output, (uint64_t)label->value);
	}
	relay_put_byte(output, '}');
}

/* first: whether no other field is before this one */
static void put_field(struct relay_output *output, bool first, const char *name, uint32_t type,
                      const struct relay_trace_enum *labels)
{
	const struct relay_field_type *base = relay_field_base(type);
	relay_put_text(output, first ? "{\"name\":\"" : ",{\"name\":\"");
	relay_put_text(output, name);
	relay_put_text(output, "\",\"type\":\"");
	relay_put_text(output, base->name);
	if (type & RELAY_TRACE_IS_SEQUENCE)
		relay_put_text(output, "[]");
	if (relay_field_count(type)) {
		relay_put_number(output, "[", relay_field_count(type));
		relay_put_byte(output, ']');
	}
	relay_put_byte(output, '"');
	if (labels)
		put_labels(output, labels, base->kind == RELAY_FIELD_SIGNED);
	relay_put_byte(output, '}');
}

static void put_fields(struct relay_output *output, const struct relay_event *event)
{
	const struct relay_traced *traced = event->stream->traced;
	const struct relay_trace_event *declared = event->declared;
	relay_put_text(output, ",\"fields\":[");
	for (uint32_t at = 0; at < traced->layouts->context_bytes; at += sizeof(uint32_t))
		put_field(output, !at, (int32_t)at == traced->vpid_at ? "_vpid" : "_vtid", RELAY_TRACE_U32, NULL);
	for (uint32_t i = 0; i < declared->n_fields; i++) {
		const struct relay_trace_field *field = &declared->fields[i];
		put_field(output, !i && !traced->layouts->context_bytes, field->name, field->type,
		          relay_field_enum(declared, field->name));
	}
	relay_put_byte(output, ']');
}

static void put_event(struct relay_output *output, const struct relay_event *event, bool with_fields)
{
	const char *level = relay_event_level(event);
	relay_put_text(output, ",\"event\":\"");
	relay_put_event_name(output, event);
	if (level) {
		relay_put_text(output, "\",\"level\":\"");
		relay_put_text(output, level);
	}
	relay_put_byte(output, '"');
	if (with_fields)
		put_fields(output, event);
}

/* false: it is too long, and has been removed. */
static bool put_description(const struct pcapng_encoder *pcapng, struct relay_output *output,
                            const struct relay_event *event, bool is_buffer, bool with_fields)
{
	const struct relay_traced *traced = event->stream->traced;
	size_t description = begin_option(output, INTERFACE_DESCRIPTION);
	relay_put_byte(output, '{');
	if (!pcapng->has_records) {
		relay_put_text(output, "\"process\":");
		relay_put_json_string(output, traced->name, strlen(traced->name));
		if (traced->pid)
			relay_put_number(output, ",\"pid\":", traced->pid);
	}
	if (is_buffer)
		relay_put_number(output, pcapng->has_records ? "\"cpu\":" : ",\"cpu\":", event->stream->cpu);
	else
		put_event(output, event, with_fields);
	relay_put_byte(output, '}');
	return end_option(output, description);
}

static void put_name(const struct pcapng_encoder *pcapng, struct relay_output *output, const struct relay_event *event,
                     bool is_buffer)
{
	const struct relay_traced *traced = event->stream->traced;
	size_t name = begin_option(output, INTERFACE_NAME);
	if (!pcapng->has_records) {
		relay_put_string(output, traced->name, strlen(traced->name), RELAY_ESCAPE_TEXT);
		if (traced->pid)
			relay_put_number(output, "-", traced->pid);
		relay_put_byte(output, ' ');
	}
	if (is_buffer)
		relay_put_number(output, "cpu", event->stream->cpu);
	else
		relay_put_event_name(output, event);
	end_option(output, name);
}

static void put_interface(const struct pcapng_encoder *pcapng, struct relay_output *output,
                          const struct relay_event *event, bool is_buffer)
{
	const uint8_t times = NS_DIGITS;
	size_t interface = begin_block(output, BLOCK_INTERFACE);
	put_u32(output, LINKTYPE_USER0);
	put_u32(output, 0); /* packets have any length */
	put_option(output, INTERFACE_TIMES, &times, sizeof(times));
	put_name(pcapng, output, event, is_buffer);
	/* Only a damaged process has declarations that are so long. */
	if (!put_description(pcapng, output, event, is_buffer, true))
		put_description(pcapng, output, event, is_buffer, false);
	put_option(output, OPTION_END, NULL, 0);
	end_block(output, interface);
}

/* --- interfaces --- */

/* Return the place of an interface, or the free one that it gets. The table has a free place. */
static struct interface *find_interface(struct pcapng_encoder *pcapng, uint32_t identity, uint32_t id, bool is_buffer)
{
	const uint64_t key = (uint64_t)identity << 32 | (id << 1 | is_buffer);
	size_t at = (size_t)((key * 0x9e3779b97f4a7c15u) >> 32);
	for (;; at++) {
		struct interface *place = &pcapng->at[at & (N_PLACES - 1)];
		if (!place->number || (place->identity == identity && place->id == id && place->is_buffer == is_buffer))
			return place;
	}
}

/* Return the interface of an event, or of its buffer; describe it if it is new. */
static struct interface *interface_of(struct pcapng_encoder *pcapng, struct relay_output *output,
                                      const struct relay_event *event, bool is_buffer)
{
	const struct relay_stream *stream = event->stream;
	const uint32_t identity = stream->traced->identity, id = is_buffer ? stream->cpu : (uint32_t)stream->cursor.id;
	struct interface *found = find_interface(pcapng, identity, id, is_buffer);
	if (found->number)
		return found;
	if (pcapng->n == INTERFACES_MAX) {
		begin_section(pcapng, output);
		found = find_interface(pcapng, identity, id, is_buffer);
	}
	*found = (struct interface){.identity = identity, .id = id, .is_buffer = is_buffer, .number = ++pcapng->n};
	put_interface(pcapng, output, event, is_buffer);
	return found;
}

/* --- events --- */

/* cause: of what was lost up to this time; NULL: it is not known, or nothing was lost since the last ones */
static void put_statistics(struct relay_output *output, const struct interface *interface, uint64_t time,
                           const char *cause)
{
	size_t statistics = begin_block(output, BLOCK_STATISTICS);
	put_u32(output, interface->number - 1);
	put_time(output, time);
	if (cause)
		put_option(output, OPTION_COMMENT, cause, (uint16_t)strlen(cause));
	put_option(output, STATISTICS_LOST, &interface->lost, sizeof(interface->lost));
	put_option(output, OPTION_END, NULL, 0);
	end_block(output, statistics);
}

static void put_loss(struct pcapng_encoder *pcapng, struct relay_output *output, const struct relay_event *event)
{
	struct interface *interface = interface_of(pcapng, output, event, true);
	put_statistics(output, interface, event->since, NULL);
	interface->lost += event->lost;
	put_statistics(output, interface, event->time, relay_loss_cause_name(event->cause));
}

static void put_packet(struct pcapng_encoder *pcapng, struct relay_output *output, const struct relay_event *event)
{
	static const char late[] = "late";
	const bool is_late = pcapng->marks_late && event->is_late;
	const struct interface *interface = interface_of(pcapng, output, event, pcapng->has_records);
	const void *data = event->context;
	size_t length = (size_t)(event->end - event->context);
	if (pcapng->has_records) {
		const struct relay_value record = relay_record_of(event);
		data = record.data;
		length = record.length;
	}
	size_t packet = begin_block(output, BLOCK_PACKET);
	put_u32(output, interface->number - 1);
	put_time(output, event->time);
	put_u32(output, (uint32_t)length); /* captured */
	put_u32(output, (uint32_t)length); /* original */
	relay_put(output, data, length);
	pad(output, length);
	if (!pcapng->has_records)
		put_option(output, PACKET_QUEUE, &event->stream->cpu, sizeof(event->stream->cpu));
	if (is_late)
		put_option(output, OPTION_COMMENT, late, sizeof(late) - 1);
	if (is_late || !pcapng->has_records)
		put_option(output, OPTION_END, NULL, 0);
	end_block(output, packet);
}

static void put_any(struct relay_encoder *encoder, struct relay_output *output, const struct relay_event *event)
{
	struct pcapng_encoder *pcapng = (struct pcapng_encoder *)encoder;
	if (event->lost)
		put_loss(pcapng, output, event);
	else
		put_packet(pcapng, output, event);
}

static void begin(struct relay_encoder *encoder, struct relay_output *output)
{
	begin_section((struct pcapng_encoder *)encoder, output);
}

struct relay_encoder *relay_encoder_pcapng(const struct relay_export_options *options)
{
	struct pcapng_encoder *pcapng = calloc(1, sizeof(*pcapng));
	if (!pcapng)
		return NULL;
	pcapng->encoder = (struct relay_encoder){.begin = begin, .event = put_any};
	pcapng->has_records = options->format == RELAY_EXPORT_RECORDS_PCAPNG;
	pcapng->marks_late = options->marks_late;
	return &pcapng->encoder;
}
