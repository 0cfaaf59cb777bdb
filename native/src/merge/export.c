/* SPDX-License-Identifier: MIT */
#include "merge/export.h"

#include <errno.h>
#include <stdlib.h>

/* What is given out at once, unless a single event is longer. */
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
		return relay_encoder_text(options);
	case RELAY_EXPORT_JSON:
		return relay_encoder_json();
	case RELAY_EXPORT_CHROME:
		return relay_encoder_chrome(options);
	case RELAY_EXPORT_PERFETTO:
		return relay_encoder_perfetto(options);
	default:
		errno = EINVAL;
		return NULL;
	}
}

struct relay_export *relay_export_new(struct relay_merge *merge, const struct relay_export_options *options)
{
	struct relay_export *exporter = calloc(1, sizeof(*exporter));
	if (!exporter)
		return NULL;
	exporter->merge = merge;
	exporter->encoder = encoder_of(options);
	if (exporter->encoder)
		return exporter;
	free(exporter);
	return NULL;
}

void relay_export_free(struct relay_export *exporter)
{
	if (!exporter)
		return;
	exporter->encoder->free(exporter->encoder);
	free(exporter->output.at);
	free(exporter);
}

ssize_t relay_export_next(struct relay_export *exporter, const char **data)
{
	struct relay_output *output = &exporter->output;
	struct relay_encoder *encoder = exporter->encoder;
	const struct relay_event *event = NULL;
	output->length = 0;
	if (!exporter->is_begun)
		encoder->begin(encoder, output);
	exporter->is_begun = true;
	while (output->length < PIECE_BYTES && (event = relay_merge_next(exporter->merge)))
		encoder->event(encoder, output, event);
	if (!event && !exporter->is_ended && relay_merge_is_ended(exporter->merge)) {
		exporter->is_ended = true;
		encoder->end(encoder, output);
	}
	*data = output->at;
	return output->has_failed ? -ENOMEM : (ssize_t)output->length;
}
