/* SPDX-License-Identifier: MIT */
/*
 * For libFuzzer: packets of anything, of events that are declared as anything, become a merge, and that each format, without a byte
 * being read that is not theirs.
 *
 * An input is a condition, declarations, then packets:
 *
 *     condition accepts number   n  {id n_fields {type form name}*}*n   context   {length begin end discarded events...}...
 *
 * a byte each but the events.
 */
#define _GNU_SOURCE
#include "merge/export.h"
#include "merge/merge.h"

#include "fuzz.h"

enum { MOST_FIELDS = 12, N_STREAMS = 3 };

/* Names that mean something to viewers, too. */
static const char *const names[] = {"n",
                                    "track_event_type",
                                    "slice_name",
                                    "track_name",
                                    "counter_value",
                                    "scope_x",
                                    "s.x",
                                    "s.y",
                                    "s.t.x",
                                    "s.t.",
                                    "..",
                                    "scope_x.y",
                                    "1.2.3.4.5.6.7.8.9",
                                    "1.2.3.4.5.6.7.8.9.10"};
static const struct relay_trace_label label = {"A", 1};

static void declare(struct relay_layouts *layouts, struct input *input)
{
	for (unsigned n = take(input) % 5; n; n--) {
		struct relay_trace_field fields[MOST_FIELDS];
		struct relay_trace_enum enums[MOST_FIELDS];
		struct relay_trace_event event = {
		    .provider = "p", .name = "e", .fields = fields, .has_place = 2, .enums = enums};
		uint64_t id = take(input) % 8;
		event.n_fields = take(input) % MOST_FIELDS;
		for (uint32_t i = 0; i < event.n_fields; i++) {
			fields[i].type = take(input) % (RELAY_N_TRACE_TYPES + 1) | form_of(take(input));
			fields[i].name = names[take(input) % (sizeof(names) / sizeof(*names))];
			enums[i] = (struct relay_trace_enum){fields[i].name, &label, 1};
		}
		event.n_enums = event.n_fields;
		relay_layouts_declare(layouts, id, &event);
	}
}

/* Gives each packet in memory of its own length. */
struct source {
	struct relay_source source;
	struct input input;
	unsigned char *events;
};

static int next(struct relay_source *source, struct relay_source_packet *packet)
{
	struct source *from = (struct source *)source;
	free(from->events);
	from->events = NULL;
	if (!from->input.left)
		return RELAY_SOURCE_ENDED;
	packet->length = take(&from->input);
	packet->head = (struct relay_packet){.timestamp_begin = take(&from->input),
	                                     .timestamp_end = (uint64_t)take(&from->input) << 40,
	                                     .events_discarded = take(&from->input)};
	if (packet->length > from->input.left)
		packet->length = from->input.left;
	from->events = malloc(packet->length + !packet->length);
	memcpy(from->events, from->input.at, packet->length);
	from->input.at += packet->length;
	from->input.left -= packet->length;
	packet->events = from->events;
	return RELAY_SOURCE_PACKET;
}

static void close_source(struct relay_source *source)
{
	free(((struct source *)source)->events);
	free(source);
}

/* Every second input has a condition of one comparison. */
static void set_condition(struct relay_merge *merge, struct input *input)
{
	struct relay_conditions conditions = {.n_steps = 1, .n_conditions = 1};
	const unsigned kind = take(input);
	strcpy(conditions.texts, names[kind / 16 % (sizeof(names) / sizeof(*names))]);
	strcpy(conditions.texts + 64, kind % 3 ? "?*\\" : "A");
	conditions.steps[0] = (struct relay_condition_step){.operand = kind / 2 % RELAY_N_OPERANDS,
	                                                    .accepts = take(input) % 16,
	                                                    .next = {RELAY_CONDITION_REFUSE, RELAY_CONDITION_TAKE},
	                                                    .text = 64,
	                                                    .number = take(input)};
	if (kind % 2)
		must(relay_merge_set_condition(merge, &conditions) == 0, "no condition");
}

static struct relay_merge *merge_of(struct input input)
{
	struct relay_merge *merge = relay_merge_new(0, UINT64_MAX);
	set_condition(merge, &input);
	/* Numbers in the context: none, as earlier versions wrote it; the thread; the process and the thread. */
	const uint32_t context = input.left ? input.at[input.left - 1] % 3 : 0;
	struct relay_merge_process process = {.name = "app",
	                                      .pid = context == 2 ? 0 : 42,
	                                      .vpid_at = context == 2 ? 0 : -1,
	                                      .vtid_at = context ? 4 * ((int32_t)context - 1) : -1,
	                                      .freq = 1000000000,
	                                      .layouts = relay_layouts_new(4 * context)};
	declare(process.layouts, &input);
	must(relay_merge_add_process(merge, &process) == 0, "no process");
	for (size_t i = 0; i < N_STREAMS; i++) {
		struct source *source = calloc(1, sizeof(*source));
		size_t part = input.left / (N_STREAMS - i);
		*source = (struct source){.source = {.next = next, .close = close_source}, .input = {input.at, part}};
		input.at += part;
		input.left -= part;
		must(relay_merge_add_source(merge, 0, (uint32_t)i, &source->source, 0) == 0, "no stream");
	}
	return merge;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint64_t counts[4];
	for (uint32_t format = RELAY_EXPORT_TEXT; format <= RELAY_EXPORT_PERFETTO; format++) {
		struct relay_merge *merge = merge_of((struct input){data, size});
		struct relay_export_options options = {.format = format,
		                                       .times = format,
		                                       .has_colours = size % 2,
		                                       .is_brief = size / 2 % 2,
		                                       .marks_late = size / 4 % 2,
		                                       .mono_offset = 10};
		struct relay_export *exporter = relay_export_new(merge, &options);
		struct relay_merge_stats stats;
		const char *text;
		ssize_t length;
		while ((length = relay_export_next(exporter, &text)) > 0)
			must(format == RELAY_EXPORT_PERFETTO || text[length - 1] == '\n' || text[length - 1] == '}',
			     "it ends within a line");
		must(length == 0 && relay_merge_is_ended(merge), "it has not ended");
		relay_merge_stats(merge, &stats);
		counts[format] = stats.events;
		must(counts[format] == counts[0], "formats have different numbers of events");
		relay_export_free(exporter);
		relay_merge_free(merge);
	}
	return 0;
}
