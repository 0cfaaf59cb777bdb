/* SPDX-License-Identifier: MIT */
/*
 * RELAY_EXPORT_RECORDS: the bytes of each record, and a newline if they do not end with one.
 * RELAY_EXPORT_RECORDS_JSON: an object a line:
 *
 *     {"ns":1700000000123456789,"cpu":0,"record":"the text\n"}
 *     {"ns":1700000000123456790,"cpu":1,"base64":"AP8="}                                      a record that is no UTF-8
 *     {"ns":1700000000123456791,"cpu":1,"lost":3,"since":1700000000123456789,"cause":"full"}
 *
 * With options.marks_late, an object has "late":true if its record is older than one that was output before it. In
 * RELAY_EXPORT_RECORDS, lines that begin with "# " report losses, and precede late records.
 */
#include "merge/export.h"

#include <stdlib.h>

struct records_encoder {
	struct relay_encoder encoder;
	bool marks_late;
};

struct relay_value relay_record_of(const struct relay_event *event)
{
	struct relay_fields fields = relay_event_fields(event);
	struct relay_value value = {.length = 0};
	relay_fields_next(&fields, &value);
	return value;
}

static void put_line(struct relay_encoder *encoder, struct relay_output *output, const struct relay_event *event)
{
	const bool is_late = ((const struct records_encoder *)encoder)->marks_late && event->is_late;
	if (event->lost || is_late)
		relay_put_number(output, "# cpu ", event->stream->cpu);
	if (event->lost) {
		relay_put_number(output, ": ", event->lost);
		relay_put_text(output, event->lost == 1 ? " record is lost" : " records are lost");
		relay_put_cause(output, ": ", event, "");
		relay_put_byte(output, '\n');
		return;
	}
	if (is_late)
		relay_put_text(output, ": the next record is late\n");
	const struct relay_value record = relay_record_of(event);
	relay_put(output, record.data, record.length);
	if (!record.length || record.data[record.length - 1] != '\n')
		relay_put_byte(output, '\n');
}

static void put_object(struct relay_encoder *encoder, struct relay_output *output, const struct relay_event *event)
{
	relay_put_number(output, "{\"ns\":", event->time);
	relay_put_number(output, ",\"cpu\":", event->stream->cpu);
	if (((const struct records_encoder *)encoder)->marks_late && event->is_late)
		relay_put_text(output, ",\"late\":true");
	if (event->lost) {
		relay_put_number(output, ",\"lost\":", event->lost);
		relay_put_number(output, ",\"since\":", event->since);
		relay_put_cause(output, ",\"cause\":\"", event, "\"");
		relay_put_text(output, "}\n");
		return;
	}
	const struct relay_value record = relay_record_of(event);
	if (relay_is_utf8(record.data, record.length)) {
		relay_put_text(output, ",\"record\":");
		relay_put_json_string(output, record.data, record.length);
	} else {
		relay_put_text(output, ",\"base64\":\"");
		relay_put_base64(output, record.data, record.length);
		relay_put_byte(output, '"');
	}
	relay_put_text(output, "}\n");
}

struct relay_encoder *relay_encoder_records(const struct relay_export_options *options)
{
	struct records_encoder *records = malloc(sizeof(*records));
	if (!records)
		return NULL;
	*records = (struct records_encoder){
	    .encoder = {.event = options->format == RELAY_EXPORT_RECORDS ? put_line : put_object},
	    .marks_late = options->marks_late};
	return &records->encoder;
}
