/* SPDX-License-Identifier: MIT */
/*
 * Time the merge of streams of packets in memory, and the formats to which its events are exported. One line a sample:
 *
 *     NAME MILLION_EVENTS_A_SECOND EVENTS
 *
 *     bench_merge ROUNDS CPU
 *
 * The library does not export relay_merge_next(), so the merge is compiled into this program; the formats are the library's.
 */
#define _GNU_SOURCE
#include "bench.h"
#include "merge/merge.h"

#include <err.h>

enum { EVENTS = 2000000, EXPORTED = 500000, N_STREAMS = 64, N_CPUS = 8, PACKET_BYTES = 65536, NS_BETWEEN = 1000 };

/* The fields of an event: the first, or the first two, or all. Its id is their number - 1. */
struct __attribute__((packed)) fields {
	uint32_t id;
	char path[12];
	double ms;
};
enum { NUMBER = 1, REQUEST = 2, TIMED = 3 };
static const size_t field_bytes[] = {0, offsetof(struct fields, path), offsetof(struct fields, ms),
                                     sizeof(struct fields)};
static const struct relay_trace_field declared[] = {
    {"id", RELAY_TRACE_U32}, {"path", RELAY_TRACE_STRING}, {"ms", RELAY_TRACE_F64}};

struct packet {
	struct packet *next;
	struct relay_packet head;
	size_t length;
	unsigned char events[PACKET_BYTES];
};

struct stream {
	struct relay_source source;
	struct packet *first, *last, *next;
};

struct streams {
	int n;
	long n_events;
	struct stream at[N_STREAMS];
};

/* --- packets --- */

static struct packet *packet_for(struct stream *stream, uint64_t time, size_t bytes)
{
	struct packet *packet = stream->last;
	if (packet && packet->length + bytes <= PACKET_BYTES)
		return packet;
	packet = calloc(1, sizeof(*packet));
	if (!packet)
		die("calloc");
	packet->head.timestamp_begin = time;
	*(stream->last ? &stream->last->next : &stream->first) = packet;
	stream->last = packet;
	return packet;
}

static void put_event(struct stream *stream, uint64_t time, int n_fields, uint32_t id)
{
	const struct __attribute__((packed)) {
		uint64_t head;
		uint32_t thread;
		struct fields fields;
	} event = {time << RELAY_TRACE_ID_BITS | (uint64_t)(n_fields - 1), 1000, {id, "/index.html", id / 1e3}};
	const size_t bytes = sizeof(event) - sizeof(event.fields) + field_bytes[n_fields];
	struct packet *packet = packet_for(stream, time, bytes);
	memcpy(packet->events + packet->length, &event, bytes);
	packet->length += bytes;
	packet->head.timestamp_end = time;
}

/* Each event is in another stream, as chance has it: the merge has the least to go by. */
static struct streams *make_streams(int n_streams, int n_fields, long n_events)
{
	struct streams *streams = calloc(1, sizeof(*streams));
	if (!streams)
		die("calloc");
	streams->n = n_streams;
	streams->n_events = n_events;
	for (long i = 0; i < n_events; i++)
		put_event(&streams->at[rand() % n_streams], (uint64_t)(i + 1) * NS_BETWEEN, n_fields, (uint32_t)i);
	return streams;
}

static int next_packet(struct relay_source *source, struct relay_source_packet *packet)
{
	struct stream *stream = (struct stream *)source;
	if (!stream->next)
		return RELAY_SOURCE_ENDED;
	packet->head = stream->next->head;
	packet->events = stream->next->events;
	packet->length = stream->next->length;
	stream->next = stream->next->next;
	return RELAY_SOURCE_PACKET;
}

static void close_stream(struct relay_source *source)
{
	(void)source;
}

/* --- the merge --- */

static int add_process(struct relay_merge *merge, uint32_t number)
{
	struct relay_layouts *layouts = relay_layouts_new(RELAY_TRACE_TID_BYTES);
	for (uint32_t n = NUMBER; n <= TIMED; n++) {
		const struct relay_trace_event event = {
		    .provider = "server", .name = "request", .fields = declared, .n_fields = n};
		if (!layouts || relay_layouts_declare(layouts, n - 1, &event))
			die("relay_layouts_declare");
	}
	const struct relay_merge_process process = {.name = "server",
	                                            .pid = 1000 + number,
	                                            .identity = number,
	                                            .vpid_at = -1,
	                                            .vtid_at = 0,
	                                            .freq = 1000000000,
	                                            .offset_s = 1700000000,
	                                            .layouts = layouts};
	return relay_merge_add_process(merge, &process);
}

static struct relay_merge *merge_of(struct streams *streams)
{
	struct relay_merge *merge = relay_merge_new(0, UINT64_MAX);
	int process = -1;
	if (!merge)
		die("relay_merge_new");
	for (int i = 0; i < streams->n; i++) {
		struct stream *stream = &streams->at[i];
		if (i % N_CPUS == 0)
			process = add_process(merge, (uint32_t)(i / N_CPUS));
		stream->source = (struct relay_source){.next = next_packet, .close = close_stream};
		stream->next = stream->first;
		if (process < 0 || relay_merge_add_source(merge, process, (uint32_t)(i % N_CPUS), &stream->source, 0))
			die("relay_merge_add_source");
	}
	return merge;
}

/* --- samples --- */

static void print_sample(const char *name, double ns, const struct relay_merge *merge, const struct streams *streams)
{
	struct relay_merge_stats stats;
	relay_merge_stats(merge, &stats);
	if (stats.events != (uint64_t)streams->n_events || stats.late || stats.damaged || stats.error)
		errx(2, "%s: the merge has not given out what the streams hold", name);
	printf("%s %.4f %ld\n", name, (double)streams->n_events / ns * 1e3, streams->n_events);
}

static void sample_merge(const char *name, struct streams *streams)
{
	struct relay_merge *merge = merge_of(streams);
	double start = now_ns();
	while (relay_merge_next(merge))
		;
	print_sample(name, now_ns() - start, merge, streams);
	relay_merge_free(merge);
}

static void sample_export(const char *name, uint32_t format, struct streams *streams)
{
	const struct relay_export_options options = {.format = format};
	struct relay_merge *merge = merge_of(streams);
	struct relay_export *exporter = relay_export_new(merge, &options);
	const char *data;
	ssize_t length;
	if (!exporter)
		die("relay_export_new");
	double start = now_ns();
	while ((length = relay_export_next(exporter, &data)) > 0)
		;
	if (length < 0)
		die("relay_export_next");
	print_sample(name, now_ns() - start, merge, streams);
	relay_export_free(exporter);
	relay_merge_free(merge);
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	pin(atoi(argv[2]));
	struct streams *one = make_streams(1, NUMBER, EVENTS), *many = make_streams(N_STREAMS, NUMBER, EVENTS);
	struct streams *requests = make_streams(N_STREAMS, REQUEST, EXPORTED);
	struct streams *timed = make_streams(N_STREAMS, TIMED, EXPORTED);
	for (int round = 0; round < atoi(argv[1]); round++) {
		sample_merge("merge-1", one);
		sample_merge("merge-64", many);
		sample_export("text", RELAY_EXPORT_TEXT, requests);
		sample_export("json", RELAY_EXPORT_JSON, requests);
		sample_export("chrome", RELAY_EXPORT_CHROME, requests);
		sample_export("perfetto", RELAY_EXPORT_PERFETTO, requests);
		sample_export("pcapng", RELAY_EXPORT_PCAPNG, requests);
		sample_export("text-f64", RELAY_EXPORT_TEXT, timed);
		sample_export("json-f64", RELAY_EXPORT_JSON, timed);
		sample_export("chrome-f64", RELAY_EXPORT_CHROME, timed);
		sample_export("perfetto-f64", RELAY_EXPORT_PERFETTO, timed);
		sample_export("pcapng-f64", RELAY_EXPORT_PCAPNG, timed);
	}
	return 0;
}
