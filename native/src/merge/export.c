/* SPDX-License-Identifier: MIT */
#include "merge/export.h"

#include <errno.h>
#include <stdlib.h>

/* A piece gets no further events when it has so many bytes. */
enum { PIECE_BYTES = 1 << 18 };

struct relay_export {
	struct relay_merge *merge;
	struct relay_encoder *encoder;
	struct relay_output output;
	bool is_begun, is_ended;
};

static struct relay_encoder *encoder_of(const struct relay_export_options *options)
{
	switch (options->format) {
	case RELAY_EXPORT_TEXT:
	case RELAY_EXPORT_RECORDS_TEXT:
		return relay_encoder_text(options);
	case RELAY_EXPORT_JSON:
		return relay_encoder_json(options);
	case RELAY_EXPORT_CHROME:
		return relay_encoder_chrome(options);
	case RELAY_EXPORT_PERFETTO:
		return relay_encoder_perfetto(options);
	case RELAY_EXPORT_RECORDS:
	case RELAY_EXPORT_RECORDS_JSON:
		return relay_encoder_records(options);
	case RELAY_EXPORT_PCAPNG:
	case RELAY_EXPORT_RECORDS_PCAPNG:
		return relay_encoder_pcapng(options);
	default:
		errno = EINVAL;
		return NULL;
	}
}

struct relay_export *relay_export_new(struct relay_merge *merge, const struct relay_export_options *options)
{
	const bool has_tracks = options->format == RELAY_EXPORT_CHROME || options->format == RELAY_EXPORT_PERFETTO;
	if (has_tracks && !relay_merge_takes_no_buffers(merge)) {
		errno = EINVAL;
		return NULL;
	}
	struct relay_export *exporter = calloc(1, sizeof(*exporter));
	if (!exporter)
		return NULL;
	exporter->merge = merge;
	exporter->encoder = encoder_of(options);
	if (exporter->encoder) {
		exporter->encoder->merge = merge;
		return exporter;
	}
	free(exporter);
	return NULL;
}

void relay_export_free(struct relay_export *exporter)
{
	if (!exporter)
		return;
	if (exporter->encoder->fini)
		exporter->encoder->fini(exporter->encoder);
	free(exporter->encoder);
	free(exporter->output.at);
	free(exporter);
}

ssize_t relay_export_next(struct relay_export *exporter, const char **data)
{
	struct relay_output *output = &exporter->output;
	struct relay_encoder *encoder = exporter->encoder;
	const struct relay_event *event = NULL;
	output->length = 0;
	if (!exporter->is_begun && encoder->begin)
		encoder->begin(encoder, output);
	exporter->is_begun = true;
	while (output->length < PIECE_BYTES && (event = relay_merge_next(exporter->merge)))
		encoder->event(encoder, output, event);
	if (!event && !exporter->is_ended && relay_merge_is_ended(exporter->merge)) {
		exporter->is_ended = true;
		if (encoder->end)
			encoder->end(encoder, output);
	}
	*data = output->at;
	return output->has_failed ? -ENOMEM : (ssize_t)output->length;
}

/* --- what formats share --- */

void relay_put_number(struct relay_output *output, const char *before, uint64_t number)
{
	relay_put_text(output, before);
	relay_put_u64(output, number);
}

void relay_put_cause(struct relay_output *output, const char *before, const struct relay_event *event,
                     const char *after)
{
	const char *cause = relay_loss_cause_name(event->cause);
	if (!cause)
		return;
	relay_put_text(output, before);
	relay_put_text(output, cause);
	relay_put_text(output, after);
}

void relay_put_event_name(struct relay_output *output, const struct relay_event *event)
{
	relay_put_text(output, event->declared->provider);
	relay_put_byte(output, ':');
	relay_put_text(output, event->declared->name);
}

static void put_single(struct relay_output *output, const struct relay_value *value, enum relay_escapes escapes)
{
	const bool is_json = escapes == RELAY_ESCAPE_JSON;
	switch (value->type->kind) {
	case RELAY_FIELD_UNSIGNED:
		relay_put_u64(output, value->u);
		break;
	case RELAY_FIELD_SIGNED:
		relay_put_i64(output, value->i);
		break;
	case RELAY_FIELD_HEX:
		if (is_json)
			relay_put_u64(output, value->u);
		else
			relay_put_hex(output, value->u);
		break;
	case RELAY_FIELD_REAL:
		relay_put_double(output, value->d, value->type->bytes == sizeof(float), is_json ? "\"" : "");
		break;
	case RELAY_FIELD_STRING:
		relay_put_byte(output, '"');
		relay_put_string(output, value->data, value->length, escapes);
		relay_put_byte(output, '"');
		break;
	case RELAY_FIELD_BYTES:
		relay_put_byte(output, is_json ? '"' : '<');
		relay_put_bytes(output, value->data, value->length);
		relay_put_byte(output, is_json ? '"' : '>');
		break;
	}
}

static void put_array(struct relay_output *output, const struct relay_value *array, enum relay_escapes escapes)
{
	relay_put_byte(output, '[');
	for (size_t i = 0; i < array->length; i++) {
		const struct relay_value value = relay_array_at(array, i);
		if (i)
			relay_put_text(output, escapes == RELAY_ESCAPE_JSON ? "," : ", ");
		put_single(output, &value, escapes);
	}
	relay_put_byte(output, ']');
}

void relay_put_value(struct relay_output *output, const struct relay_value *value, enum relay_escapes escapes)
{
	if (value->is_array)
		put_array(output, value, escapes);
	else if (value->label && escapes == RELAY_ESCAPE_JSON)
		relay_put_json_string(output, value->label, strlen(value->label));
	else if (value->label)
		relay_put_text(output, value->label);
	else
		put_single(output, value, escapes);
}
