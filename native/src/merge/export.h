/* SPDX-License-Identifier: MIT */
/* The interface between export.c and the formats, and functions that several formats use. */
#ifndef RELAYFS_MERGE_EXPORT_H
#define RELAYFS_MERGE_EXPORT_H

#include "merge/merge.h"
#include "merge/output.h"

/* A format; the first member of the format's own struct. Functions other than event() may be NULL. */
struct relay_encoder {
	const struct relay_merge *merge; /* export.c sets it before it calls a function */
	void (*begin)(struct relay_encoder *encoder, struct relay_output *output);
	void (*event)(struct relay_encoder *encoder, struct relay_output *output, const struct relay_event *event);
	void (*end)(struct relay_encoder *encoder, struct relay_output *output);
	void (*fini)(struct relay_encoder *encoder); /* before the struct is freed */
};

/* Each returns a new encoder; the caller calls fini() and free(). NULL: no memory. */
struct relay_encoder *relay_encoder_text(const struct relay_export_options *options);
struct relay_encoder *relay_encoder_json(const struct relay_export_options *options);
struct relay_encoder *relay_encoder_chrome(const struct relay_export_options *options);
struct relay_encoder *relay_encoder_perfetto(const struct relay_export_options *options);
struct relay_encoder *relay_encoder_records(const struct relay_export_options *options);
struct relay_encoder *relay_encoder_pcapng(const struct relay_export_options *options);

/* Write a value, in JSON or, with RELAY_ESCAPE_TEXT, as text, in which integers of the types x8 to x64 are hexadecimal. An
 * enum's value is written as its label, if it has one. */
void relay_put_value(struct relay_output *output, const struct relay_value *value, enum relay_escapes escapes);

/* Write what is known of a machine's clock as an object: {"host":"web-1","max_error_ns":1500000,"est_error_ns":20000}. What is
 * not known is null. */
void relay_put_json_host(struct relay_output *output, const struct relay_host *host);

/* Write a time as the lines of relay_encoder_text() begin. */
void relay_put_line_time(struct relay_encoder *encoder, struct relay_output *output, uint64_t time);

/* Write PROVIDER:NAME. */
void relay_put_event_name(struct relay_output *output, const struct relay_event *event);

/* Return the bytes of a record of a channel, which are the only field of its event. */
struct relay_value relay_record_of(const struct relay_event *event);

/* Write the text `before` and a number. */
void relay_put_number(struct relay_output *output, const char *before, uint64_t number);

/* Write the word for the cause of a loss, between two texts; nothing, if the cause is not known. */
void relay_put_cause(struct relay_output *output, const char *before, const struct relay_event *event,
                     const char *after);

/* Write {"NAME":VALUE,...} with an event's fields, except those for whose names leaves_out() returns true. Structs are
 * objects. leaves_out may be NULL. */
void relay_put_json_fields(struct relay_output *output, const struct relay_event *event,
                           bool (*leaves_out)(const char *name));

/* Write a text as a string of JSON, in quotes. */
void relay_put_json_string(struct relay_output *output, const void *text, size_t length);

#endif
