/* SPDX-License-Identifier: MIT */
/* Packets that a test makes, and a source that gives them. */
#ifndef PACKETS_H
#define PACKETS_H

#include "check.h"

#include "merge/merge.h"

DEFINE_AUTOPTR(relay_merge, relay_merge_free)

/* The last two arguments of packet_of(). */
#define TIMES(...)                                          \
	sizeof((uint64_t[]){__VA_ARGS__}) / 8, (uint64_t[]) \
	{                                                   \
		__VA_ARGS__                                 \
	}

/* For merge_of(): as late as can be. */
static const uint64_t EVER = UINT64_MAX;

/* A packet that is being made. Its head's sizes and times are set as events are put in. */
struct made {
	struct relay_packet head;
	unsigned char events[1 << 16];
	size_t length;
};

static inline struct made *begin_packet(uint64_t begin, uint64_t discarded)
{
	struct made *made = calloc(1, sizeof(*made));

	CHECK(made != NULL);
	made->head = (struct relay_packet){.magic = RELAY_PACKET_MAGIC,
	                                   .events_discarded = discarded,
	                                   .timestamp_begin = begin,
	                                   .timestamp_end = begin,
	                                   .content_size = 8 * sizeof(struct relay_packet),
	                                   .packet_size = 8 * sizeof(struct relay_packet)};
	return made;
}

static inline void put(struct made *made, const void *data, size_t length)
{
	CHECK(made->length + length <= sizeof(made->events));
	memcpy(made->events + made->length, data, length);
	made->length += length;
	made->head.content_size = made->head.packet_size = 8 * (sizeof(made->head) + made->length);
}

static inline void put_event(struct made *made, uint64_t time, uint16_t id, const void *fields, size_t length)
{
	uint64_t head = time << RELAY_TRACE_ID_BITS | id;

	put(made, &head, sizeof(head));
	put(made, fields, length);
	made->head.timestamp_end = time;
}

/* Events of id 0, which have one u32, of these times; their values are the number of the stream and of the event. */
static inline struct made *packet_of(uint32_t stream, uint32_t first, size_t n, const uint64_t *times)
{
	struct made *made = begin_packet(n ? times[0] : 0, 0);

	for (size_t i = 0; i < n; i++) {
		uint32_t value = stream << 24 | (first + (uint32_t)i);

		put_event(made, times[i], 0, &value, sizeof(value));
	}
	return made;
}

/* A source that gives what it was given, and then says that it is empty, or has ended. */
struct queue {
	struct relay_source source;
	struct made *packets[64];
	size_t n, given;
	uint64_t watermark;
	bool is_ended;
	unsigned n_asked, n_closed;
};

static inline int next_of_queue(struct relay_source *source, struct relay_source_packet *packet)
{
	struct queue *queue = (struct queue *)source;

	queue->n_asked++;
	packet->watermark = queue->watermark;
	if (queue->given == queue->n)
		return queue->is_ended ? RELAY_SOURCE_ENDED : RELAY_SOURCE_EMPTY;
	struct made *made = queue->packets[queue->given++];

	packet->head = made->head;
	packet->events = made->events;
	packet->length = made->length;
	return RELAY_SOURCE_PACKET;
}

static inline void close_queue(struct relay_source *source)
{
	struct queue *queue = (struct queue *)source;

	queue->n_closed++;
	for (size_t i = 0; i < queue->n; i++)
		free(queue->packets[i]);
}

static inline void give(struct queue *queue, struct made *made)
{
	CHECK(queue->n < sizeof(queue->packets) / sizeof(queue->packets[0]));
	queue->packets[queue->n++] = made;
}

static inline void add_queue(struct relay_merge *merge, int process, uint32_t cpu, struct queue *queue)
{
	queue->source = (struct relay_source){.next = next_of_queue, .close = close_queue};
	CHECK_EQ(relay_merge_add_source(merge, process, cpu, &queue->source, queue->watermark), 0);
}

/* Layouts with one event of id 0, p:e, of one u32. */
static inline struct relay_layouts *one_u32(void)
{
	static const struct relay_trace_field fields[] = {{"n", RELAY_TRACE_U32}};
	static const struct relay_trace_event event = {.provider = "p", .name = "e", .fields = fields, .n_fields = 1};
	struct relay_layouts *layouts = relay_layouts_new(0);

	CHECK_EQ(relay_layouts_declare(layouts, 0, &event), 0);
	return layouts;
}

/* A process whose clock counts ns since 1970. */
static inline struct relay_merge_process a_process(struct relay_layouts *layouts)
{
	return (struct relay_merge_process){
	    .name = "app", .pid = 42, .vpid_at = -1, .vtid_at = -1, .freq = 1000000000, .layouts = layouts};
}

static inline struct relay_merge *merge_of(uint64_t since, uint64_t until)
{
	struct relay_merge *merge = relay_merge_new(since, until);
	struct relay_merge_process process = a_process(one_u32());

	CHECK_EQ(relay_merge_add_process(merge, &process), 0);
	return merge;
}

static inline uint64_t number_of(const struct relay_event *event)
{
	struct relay_fields fields = relay_event_fields(event);
	struct relay_value value;

	CHECK(relay_fields_next(&fields, &value) && value.type == relay_field_type_at(RELAY_TRACE_U32));
	return value.u;
}

/* The times that a merge gives out from now on, as text; each with the stream's letter. */
static inline const char *given_times(struct relay_merge *merge)
{
	static char text[4096];
	size_t used = 0;
	const struct relay_event *event;

	text[0] = 0;
	while ((event = relay_merge_next(merge)))
		used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%c%llu", used ? " " : "",
		                         (event->lost ? 'A' : 'a') + (int)event->stream->number,
		                         (unsigned long long)event->time);
	return text;
}

static inline struct relay_merge_stats stats(const struct relay_merge *merge)
{
	struct relay_merge_stats stats;

	relay_merge_stats(merge, &stats);
	return stats;
}

#endif
