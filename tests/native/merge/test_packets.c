/* SPDX-License-Identifier: MIT */
/* What a merge gives out becomes packets again. */
#define _GNU_SOURCE
#include "packets.h"

LIBRARY(static);

enum { SHORT = RELAY_TRACE_HEAD_BYTES + 4, LONG = RELAY_TRACE_LONG_HEAD_BYTES + 4 };
static const uint64_t HIGH = 1ull << RELAY_TRACE_TIME_BITS;

DEFINE_AUTOPTR(relay_packets, relay_packets_free)

/* The times and values of a packet's events, as a reader of CTF finds them. */
static const char *read_events(const struct relay_merge_packet *packet)
{
	static char text[1 << 12];
	struct relay_layouts *layouts = one_u32();
	const unsigned char *events = (const unsigned char *)(packet->events ? packet->events : "");
	struct relay_event_cursor cursor = {.layouts = layouts,
	                                    .at = events,
	                                    .stop = events + packet->length,
	                                    .time = packet->begin,
	                                    .end = packet->end};
	uint64_t n_events = 0;
	size_t n = 0;

	text[0] = 0;
	for (; cursor.at < cursor.stop; n_events++) {
		uint32_t value;

		CHECK_EQ(relay_next_event(&cursor), RELAY_PACKET_GOOD);
		memcpy(&value, cursor.context, sizeof(value));
		n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%llu=%u", n ? " " : "",
		                      (unsigned long long)cursor.time, value & 0xffffff);
	}
	CHECK_EQ(n_events, packet->n_events);
	relay_layouts_free(layouts);
	return text;
}

#define CHECK_PACKET(packets, of_cpu, of_begin, of_end, of_lost, events) \
	do {                                                             \
		struct relay_merge_packet found;                         \
		CHECK_EQ(relay_packets_next(packets, &found), 1);        \
		CHECK_EQ(found.cpu, of_cpu);                             \
		CHECK_EQ(found.begin, of_begin);                         \
		CHECK_EQ(found.end, of_end);                             \
		CHECK_EQ(found.lost, of_lost);                           \
		CHECK_EQ(strcmp(read_events(&found), events), 0);        \
	} while (0)

static void check_none(struct relay_packets *packets)
{
	struct relay_merge_packet found;

	CHECK_EQ(relay_packets_next(packets, &found), 0);
}

TEST(each_stream_has_its_events_of_a_round_in_one_packet)
{
	struct queue a = {.watermark = 0}, b = {.watermark = 0};
	AUTOPTR(relay_merge) merge = merge_of(0, UINT64_MAX);
	AUTOPTR(relay_packets) packets = relay_packets_new(merge);

	give(&a, packet_of(1, 0, 2, (uint64_t[]){10, 20}));
	give(&a, packet_of(1, 2, 2, (uint64_t[]){30, 40}));
	give(&b, packet_of(2, 0, 3, (uint64_t[]){15, 25, 35}));
	add_queue(merge, 0, 3, &a);
	add_queue(merge, 0, 5, &b);
	a.watermark = b.watermark = 50;
	relay_merge_limit(merge, 30);
	CHECK_EQ(relay_packets_gather(packets, 0), 1);
	CHECK_EQ(relay_merge_reached(merge), 30);
	CHECK_PACKET(packets, 3, 10, 30, 0, "10=0 20=1 30=2");
	CHECK_PACKET(packets, 5, 15, 25, 0, "15=0 25=1");
	check_none(packets);
	relay_merge_limit(merge, 100);
	CHECK_EQ(relay_packets_gather(packets, 30), 1);
	/* Both may still give an event of 50. */
	CHECK_EQ(relay_merge_reached(merge), 49);
	CHECK_PACKET(packets, 5, 35, 35, 0, "35=2");
	CHECK_PACKET(packets, 3, 40, 40, 0, "40=3");
	check_none(packets);
	a.is_ended = b.is_ended = true;
	CHECK_EQ(relay_packets_gather(packets, 49), 1);
	check_none(packets);
	CHECK_EQ(relay_merge_reached(merge), 100);
}

TEST(an_event_that_is_older_than_the_floor_gets_its_time)
{
	struct queue a = {.is_ended = true};
	AUTOPTR(relay_merge) merge = merge_of(0, UINT64_MAX);
	AUTOPTR(relay_packets) packets = relay_packets_new(merge);

	give(&a, packet_of(1, 0, 4, (uint64_t[]){10, 99, 100, 130}));
	add_queue(merge, 0, 0, &a);
	CHECK_EQ(relay_packets_gather(packets, 100), 1);
	CHECK_PACKET(packets, 0, 100, 130, 0, "100=0 100=1 100=2 130=3");
	check_none(packets);
}

TEST(the_floor_is_met_by_any_clock)
{
	const uint64_t freqs[] = {1, 3, 24000000, 1000000000, 2893438123, 1ull << 33};
	size_t i;

	for (i = 0; i < sizeof(freqs) / sizeof(freqs[0]); i++) {
		struct queue a = {.is_ended = true};
		AUTOPTR(relay_merge) merge = relay_merge_new(0, UINT64_MAX);
		AUTOPTR(relay_packets) packets = relay_packets_new(merge);
		struct relay_merge_process process = a_process(one_u32());
		struct relay_merge_packet found;
		const uint64_t floor = 1700000000123456789;
		struct relay_traced traced = {0};

		process.freq = freqs[i];
		process.offset_s = 1600000000;
		CHECK_EQ(relay_merge_add_process(merge, &process), 0);
		give(&a, packet_of(1, 0, 1, (uint64_t[]){7}));
		add_queue(merge, 0, 0, &a);
		CHECK_EQ(relay_packets_gather(packets, floor), 1);
		CHECK_EQ(relay_packets_next(packets, &found), 1);
		process.layouts = one_u32();
		CHECK_EQ(relay_traced_init(&traced, &process), 0);
		CHECK(relay_traced_time(&traced, found.begin) >= floor);
		CHECK(relay_traced_time(&traced, found.begin - 2 - process.freq / 1000000000) < floor);
		relay_traced_free(&traced);
	}
}

TEST(losses_are_told_where_a_packet_begins)
{
	struct queue a = {.is_ended = true};
	AUTOPTR(relay_merge) merge = merge_of(0, UINT64_MAX);
	AUTOPTR(relay_packets) packets = relay_packets_new(merge);
	const uint64_t discarded[] = {0, 3, 3, 10};

	for (uint32_t i = 0; i < 4; i++) {
		uint64_t time = 10 * (i + 1);
		struct made *made = packet_of(1, i, 1, &time);

		made->head.events_discarded = discarded[i];
		give(&a, made);
	}
	give(&a, begin_packet(90, 11));
	give(&a, begin_packet(95, 13));
	add_queue(merge, 0, 0, &a);
	CHECK_EQ(relay_packets_gather(packets, 0), 1);
	CHECK_PACKET(packets, 0, 10, 10, 0, "10=0");
	CHECK_PACKET(packets, 0, 20, 30, 3, "20=1 30=2");
	CHECK_PACKET(packets, 0, 40, 40, 7, "40=3");
	CHECK_PACKET(packets, 0, 90, 95, 3, "");
	check_none(packets);
}

TEST(times_are_whole_also_where_their_low_bits_begin_anew)
{
	struct queue a = {.is_ended = true};
	AUTOPTR(relay_merge) merge = merge_of(0, UINT64_MAX);
	AUTOPTR(relay_packets) packets = relay_packets_new(merge);
	struct relay_merge_packet found;

	give(&a, packet_of(1, 0, 1, (uint64_t[]){5}));
	give(&a, packet_of(1, 1, 2, (uint64_t[]){3 * HIGH + 1, 3 * HIGH + 2}));
	add_queue(merge, 0, 0, &a);
	CHECK_EQ(relay_packets_gather(packets, 0), 1);
	CHECK_EQ(relay_packets_next(packets, &found), 1);
	CHECK_EQ(strcmp(read_events(&found), "5=0 844424930131969=1 844424930131970=2"), 0);
	CHECK_EQ(found.length, SHORT + 2 * LONG);
	check_none(packets);
}

TEST(what_is_too_much_for_one_call_comes_with_the_next)
{
	AUTOPTR(relay_merge) merge = merge_of(0, UINT64_MAX);
	AUTOPTR(relay_packets) packets = relay_packets_new(merge);
	enum { N_PACKETS = 60, N_STREAMS = 40, EVENTS = 4000 };
	static struct queue queues[N_STREAMS];
	static uint64_t times[EVENTS];
	uint64_t n_events = 0;
	unsigned n_calls = 0;
	int is_all = 0;

	for (uint32_t i = 0; i < N_STREAMS; i++) {
		for (uint32_t j = 0; j < N_PACKETS / 10; j++) {
			for (uint32_t k = 0; k < EVENTS; k++)
				times[k] = (uint64_t)j * EVENTS + k;
			give(&queues[i], packet_of(i, j * EVENTS, EVENTS, times));
		}
		queues[i].is_ended = true;
		add_queue(merge, 0, i, &queues[i]);
	}
	for (; !is_all; n_calls++) {
		struct relay_merge_packet found;
		size_t bytes = 0;

		is_all = relay_packets_gather(packets, 0);
		CHECK(is_all >= 0);
		while (relay_packets_next(packets, &found)) {
			n_events += found.n_events;
			bytes += found.length;
			CHECK(found.length <= (1 << 18) + LONG);
		}
		CHECK(bytes <= (1 << 22) + LONG);
	}
	CHECK(n_calls > 1);
	CHECK_EQ(n_events, (uint64_t)N_STREAMS * (N_PACKETS / 10) * EVENTS);
}
