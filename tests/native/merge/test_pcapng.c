/* SPDX-License-Identifier: MIT */
/* The parts of RELAY_EXPORT_PCAPNG that programs do not make happen at will; tests/fuse/traces/test_merged_raw.py has the
 * others. */
#define _GNU_SOURCE
#include "packets.h"

LIBRARY(static);

enum { INTERFACE = 1, STATISTICS = 5, PACKET = 6, LABELS = 256, ENUMS = 8 };

DEFINE_AUTOPTR(relay_export, relay_export_free)

static struct relay_export *pcapng_of(struct relay_merge *merge)
{
	const struct relay_export_options options = {.format = RELAY_EXPORT_PCAPNG, .marks_late = 1};
	struct relay_export *exporter = relay_export_new(merge, &options);

	CHECK(exporter != NULL);
	return exporter;
}

struct words {
	const char *at;
	size_t length; /* of the block */
};

static uint32_t word(struct words block, size_t n)
{
	uint32_t found;

	CHECK(4 * n + sizeof(found) <= block.length);
	memcpy(&found, block.at + 4 * n, sizeof(found));
	return found;
}

/* The n-th block of a type; length 0: there are fewer. All blocks have their length at both ends. */
static struct words block_of(const char *data, ssize_t length, uint32_t type, unsigned n)
{
	struct words block = {data, 12};

	for (; block.at < data + length; block.at += block.length) {
		block.length = 12;
		block.length = word(block, 1);
		CHECK(block.length % 4 == 0 && block.at + block.length <= data + length);
		CHECK_EQ(word(block, block.length / 4 - 1), block.length);
		if (word(block, 0) == type && n-- == 0)
			return block;
	}
	return (struct words){NULL, 0};
}

TEST(late_events_have_a_comment)
{
	struct queue a = {.is_ended = true}, late = a;
	AUTOPTR(relay_merge) merge = merge_of(0, UINT64_MAX);
	AUTOPTR(relay_export) exporter = pcapng_of(merge);
	const char *data;

	give(&a, packet_of(1, 0, 1, (uint64_t[]){1ull << 40 | 7}));
	add_queue(merge, 0, 3, &a);
	ssize_t length = relay_export_next(exporter, &data);
	struct words packet = block_of(data, length, PACKET, 0);
	/* Number, time, length twice, the event's number, its CPU, no more options. */
	CHECK_EQ(packet.length, 4 * 12);
	CHECK(word(packet, 2) == 0 && word(packet, 3) == 1 << 8 && word(packet, 4) == 7);
	CHECK(word(packet, 5) == 4 && word(packet, 6) == 4 && word(packet, 7) == 1 << 24);
	CHECK(word(packet, 8) == (4 << 16 | 6) && word(packet, 9) == 3 && word(packet, 10) == 0);

	give(&late, packet_of(2, 0, 1, (uint64_t[]){5}));
	add_queue(merge, 0, 4, &late);
	length = relay_export_next(exporter, &data);
	CHECK_EQ(block_of(data, length, INTERFACE, 0).length, 0);
	packet = block_of(data, length, PACKET, 0);
	CHECK_EQ(packet.length, 4 * 14);
	CHECK(word(packet, 4) == 5 && word(packet, 9) == 4);
	CHECK(word(packet, 10) == (4 << 16 | 1) && memcmp(packet.at + 44, "late", 4) == 0);
}

TEST(losses_are_counted_from_the_beginning_of_the_section)
{
	struct queue a = {.is_ended = true};
	AUTOPTR(relay_merge) merge = merge_of(0, UINT64_MAX);
	AUTOPTR(relay_export) exporter = pcapng_of(merge);
	const uint64_t times[] = {10, 20, 30}, lost[] = {2, 5, 12};
	const char *data;

	for (int i = 0; i < 3; i++) {
		give(&a, packet_of(1, 0, 1, &times[i]));
		a.packets[i]->head.events_discarded = lost[i];
	}
	add_queue(merge, 0, 3, &a);
	ssize_t length = relay_export_next(exporter, &data);
	const uint64_t expected[][2] = {{10, 0}, {20, 3}, {20, 3}, {30, 10}};
	for (unsigned i = 0; i < 4; i++) {
		struct words statistics = block_of(data, length, STATISTICS, i);

		CHECK(word(statistics, 2) == 1 && word(statistics, 4) == expected[i][0]);
		CHECK(word(statistics, 5) == (8 << 16 | 7) && word(statistics, 6) == expected[i][1]);
	}
	CHECK_EQ(block_of(data, length, STATISTICS, 4).length, 0);
	CHECK_EQ(block_of(data, length, INTERFACE, 2).length, 0);
}

TEST(a_declaration_that_is_too_long_for_the_format_has_no_fields)
{
	static char names[LABELS][128];
	struct relay_trace_label labels[LABELS];
	struct relay_trace_enum enums[ENUMS];
	struct relay_trace_field fields[ENUMS];
	char field_names[ENUMS][2];

	for (int i = 0; i < LABELS; i++) {
		snprintf(names[i], sizeof(names[i]), "%0127d", i);
		labels[i] = (struct relay_trace_label){names[i], i};
	}
	for (int i = 0; i < ENUMS; i++) {
		memcpy(field_names[i], (char[]){(char)('a' + i), 0}, 2);
		fields[i] = (struct relay_trace_field){field_names[i], RELAY_TRACE_U8 | RELAY_TRACE_IS_ENUM};
		enums[i] = (struct relay_trace_enum){field_names[i], labels, LABELS};
	}
	for (uint32_t n = 1; n <= ENUMS; n += ENUMS - 1) {
		const struct relay_trace_event event = {.provider = "p",
		                                        .name = "e",
		                                        .fields = fields,
		                                        .n_fields = n,
		                                        .has_place = 2,
		                                        .enums = enums,
		                                        .n_enums = n};
		struct queue a = {.is_ended = true};
		AUTOPTR(relay_merge) merge = relay_merge_new(0, UINT64_MAX);
		AUTOPTR(relay_export) exporter = pcapng_of(merge);
		struct relay_layouts *layouts = relay_layouts_new(0);
		const struct relay_merge_process process = a_process(layouts);
		const char *data;

		CHECK_EQ(relay_layouts_declare(layouts, 0, &event), 0);
		CHECK_EQ(relay_merge_add_process(merge, &process), 0);
		give(&a, begin_packet(5, 0));
		put_event(a.packets[0], 5, 0, "12345678", n);
		add_queue(merge, 0, 0, &a);
		ssize_t length = relay_export_next(exporter, &data);
		struct words interface = block_of(data, length, INTERFACE, 0),
			     packet = block_of(data, length, PACKET, 0);

		CHECK_EQ(memmem(interface.at, interface.length, "\"fields\":[{\"name\":\"a\",", 21) != NULL, n == 1);
		CHECK(memmem(interface.at, interface.length, "{\"process\":\"app\",\"pid\":42,\"event\":\"p:e\"", 39));
		CHECK(word(packet, 5) == n && memcmp(packet.at + 28, "12345678", n) == 0);
	}
}
