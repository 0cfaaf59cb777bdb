/* SPDX-License-Identifier: MIT */
/* What the formats have in common. */
#ifndef RELAYFS_MERGE_EXPORT_H
#define RELAYFS_MERGE_EXPORT_H

#include "merge/merge.h"
#include "merge/output.h"

/* A format; the first member of a format's own struct, if it has one. All but event() may be NULL. */
struct relay_encoder {
	void (*begin)(struct relay_encoder *encoder, struct relay_output *output);
	void (*event)(struct relay_encoder *encoder, struct relay_output *output, const struct relay_event *event);
	void (*end)(struct relay_encoder *encoder, struct relay_output *output);
	void (*fini)(struct relay_encoder *encoder); /* before the struct is freed */
};

/* The caller frees them with free(). NULL: no memory. */
struct relay_encoder *relay_encoder_text(const struct relay_export_options *options);
struct relay_encoder *relay_encoder_json(const struct relay_export_options *options);
struct relay_encoder *relay_encoder_chrome(const struct relay_export_options *options);
struct relay_encoder *relay_encoder_perfetto(const struct relay_export_options *options);
struct relay_encoder *relay_encoder_records(const struct relay_export_options *options);

/* A value in JSON, or with RELAY_ESCAPE_TEXT as text, in which integers of the types x8 to x64 are hexadecimal. An enum's value is its
 * label, if it has one. */
void relay_put_value(struct relay_output *output, const struct relay_value *value, enum relay_escapes escapes);

/* PROVIDER:NAME */
void relay_put_event_name(struct relay_output *output, const struct relay_event *event);

/* The only field of an event that is a record. */
struct relay_value relay_record_of(const struct relay_event *event);

/* The number behind the text `before`. */
void relay_put_number(struct relay_output *output, const char *before, uint64_t number);

/* {"NAME":VALUE,...}, of an event's fields but those that `leaves_out`, if it is not NULL, says; structs are objects in it. */
void relay_put_json_fields(struct relay_output *output, const struct relay_event *event,
                           bool (*leaves_out)(const char *name));

/* "TEXT" */
void relay_put_json_string(struct relay_output *output, const void *text, size_t length);

#endif
