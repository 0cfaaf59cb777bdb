/* SPDX-License-Identifier: MIT */
/* What the formats have in common. */
#ifndef RELAYFS_MERGE_EXPORT_H
#define RELAYFS_MERGE_EXPORT_H

#include "merge/merge.h"
#include "merge/output.h"

/* A format. Whoever has more to know begins his own struct with this. */
struct relay_encoder {
	void (*begin)(struct relay_encoder *encoder, struct relay_output *output);
	void (*event)(struct relay_encoder *encoder, struct relay_output *output, const struct relay_event *event);
	void (*end)(struct relay_encoder *encoder, struct relay_output *output);
	void (*free)(struct relay_encoder *encoder);
};

/* NULL: no memory. */
struct relay_encoder *relay_encoder_text(const struct relay_export_options *options);
struct relay_encoder *relay_encoder_json(void);
struct relay_encoder *relay_encoder_chrome(const struct relay_export_options *options);
struct relay_encoder *relay_encoder_perfetto(const struct relay_export_options *options);

/* {"NAME":VALUE,...}, of an event's fields but those that `leaves_out`, if it is not NULL, says. */
void relay_put_json_fields(struct relay_output *output, const struct relay_event *event,
                           bool (*leaves_out)(const char *name));

void relay_put_json_value(struct relay_output *output, const struct relay_value *value);

/* "TEXT" */
void relay_put_json_string(struct relay_output *output, const void *text, size_t length);

#endif
