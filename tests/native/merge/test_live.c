/* SPDX-License-Identifier: MIT */
/* Buffers are merged while they are written to. */
#define _GNU_SOURCE
#include "live.h"

#include "merge/live.h"

#include <errno.h>

LIBRARY(static);

TEST(events_of_buffers_come_in_the_order_of_their_times)
{
	struct relay_merge *merge = live_merge();
	struct rchan_buf *a = make_packets(SUBBUF, RELAY_NO_OVERWRITE), *b = make_packets(SUBBUF, RELAY_NO_OVERWRITE);

	CHECK_EQ(relay_merge_add_buffer(merge, 0, 0, a, true), 0);
	CHECK_EQ(relay_merge_add_buffer(merge, 0, 1, b, true), 0);
	CHECK_GIVEN(merge, "");
	for (uint32_t i = 0; i < 6; i++)
		write_number(i % 3 ? a : b, i);
	uint64_t between = now();
	CHECK(relay_merge_look(merge, false) >= between);
	write_number(a, 6);
	CHECK_GIVEN(merge, "0 1 2 3 4 5");
	/* What comes later than the limit waits. */
	relay_merge_look(merge, false);
	relay_merge_limit(merge, between);
	CHECK_GIVEN(merge, "");
	relay_merge_limit(merge, UINT64_MAX);
	CHECK_GIVEN(merge, "6");
	CHECK(!relay_merge_is_behind(merge) && !relay_merge_is_ended(merge));
	relay_merge_finish(merge, 0);
	write_number(b, 7);
	relay_merge_look(merge, false);
	CHECK_GIVEN(merge, "7");
	relay_merge_look(merge, false);
	CHECK_GIVEN(merge, "");
	CHECK(relay_merge_is_ended(merge));
	relay_merge_free(merge);
	relay_buf_release(a);
	relay_buf_release(b);
}

/* A buffer with one event, which then cannot be read for a while. */
struct busy {
	struct relay_followed followed;
	uint64_t time; /* of the event; 0: it was copied */
	bool is_busy;
};

static int copy_busy(struct relay_followed *followed, void *to, size_t size)
{
	struct busy *busy = (struct busy *)followed;
	const struct {
		uint64_t head;
		uint32_t number;
	} event = {busy->time << RELAY_TRACE_ID_BITS, 1};

	if (busy->is_busy || !busy->time)
		return busy->is_busy ? -EAGAIN : 0;
	followed->piece =
	    (struct relay_piece){.length = sizeof(event.head) + sizeof(event.number), .begin = busy->time};
	CHECK(size >= followed->piece.length);
	memcpy(to, &event, followed->piece.length);
	busy->time = 0;
	return 1;
}

static void pass_busy(struct relay_followed *followed, size_t bytes, uint64_t n_events)
{
	CHECK_EQ(n_events, 1);
	followed->offset += bytes;
}

static bool head_of_busy(struct relay_followed *followed, uint64_t *number)
{
	*number = followed->number;
	return true;
}

static void refused_by_busy(struct relay_followed *followed, uint64_t records[RELAY_N_REFUSALS])
{
	(void)followed;
	memset(records, 0, RELAY_N_REFUSALS * sizeof(records[0]));
}

static void close_busy(struct relay_followed *followed)
{
	(void)followed;
}

TEST(a_buffer_that_cannot_be_read_for_a_while_does_not_take_back_what_was_reached)
{
	AUTOPTR(rchan_buf) other = make_packets(SUBBUF, RELAY_NO_OVERWRITE);
	struct busy busy = {.followed = {.copy = copy_busy,
	                                 .pass = pass_busy,
	                                 .head = head_of_busy,
	                                 .count_refused = refused_by_busy,
	                                 .close = close_busy},
	                    .time = now()};
	AUTOPTR(relay_merge) merge = live_merge();

	CHECK_EQ(relay_merge_add_followed(merge, 0, 0, &busy.followed), 0);
	CHECK_EQ(relay_merge_add_buffer(merge, 0, 1, other, true), 0);
	const uint64_t looked = relay_merge_look(merge, false);
	CHECK_GIVEN(merge, "1");
	busy.is_busy = true;
	write_number(other, 2);
	relay_merge_look(merge, false);
	CHECK_GIVEN(merge, "");
	CHECK(relay_merge_reached(merge) + 1 >= looked);
	busy.is_busy = false;
	relay_merge_look(merge, false);
	CHECK_GIVEN(merge, "2");
}

TEST(events_that_have_to_wait_leave_programs_room)
{
	AUTOPTR(rchan_buf) buf = make_packets(128, RELAY_NO_OVERWRITE);
	AUTOPTR(relay_merge) merge = live_merge();
	const uint32_t n = 1000;

	CHECK_EQ(relay_merge_add_buffer(merge, 0, 0, buf, true), 0);
	relay_merge_limit(merge, 0);
	for (uint32_t i = 0; i < n; i++) {
		write_number(buf, i);
		do {
			relay_merge_look(merge, true);
			CHECK_GIVEN(merge, "");
		} while (relay_merge_is_behind(merge));
	}
	relay_merge_limit(merge, UINT64_MAX);
	for (uint32_t i = 0; i < n; i++) {
		const struct relay_event *event = relay_merge_next(merge);
		CHECK(event && !event->lost);
		CHECK_EQ(number_of(event), i);
	}
}

TEST(events_can_be_declared_after_they_were_seen)
{
	static const struct relay_trace_field fields[] = {{"n", RELAY_TRACE_U32}};
	static const struct relay_trace_event event = {
	    .provider = "p", .name = "late", .fields = fields, .n_fields = 1};
	AUTOPTR(rchan_buf) buf = make_packets(SUBBUF, RELAY_NO_OVERWRITE);
	AUTOPTR(relay_merge) merge = live_merge();
	struct relay_merge_process_stats stats;
	uint32_t number = 1;

	CHECK_EQ(relay_merge_add_buffer(merge, 0, 0, buf, true), 0);
	write_number(buf, 0);
	CHECK_EQ(write_event(buf, 7, &number, sizeof(number)), 0);
	relay_merge_look(merge, false);
	CHECK_EQ(relay_layouts_declare(relay_merge_layouts(merge, 0), 7, &event), 0);
	CHECK_GIVEN(merge, "0 1");
	/* One that never is costs the rest of its sub-buffer. */
	CHECK_EQ(write_event(buf, 8, &number, sizeof(number)), 0);
	write_number(buf, 2);
	CHECK_EQ(relay_buf_flush(buf), 0);
	write_number(buf, 3);
	relay_merge_look(merge, false);
	CHECK_GIVEN(merge, "");
	relay_merge_look(merge, false);
	CHECK_GIVEN(merge, "-2 3");
	CHECK_EQ(relay_merge_process_stats(merge, 0, &stats), 0);
	CHECK(stats.n_open == 1 && stats.n_damaged == 1 && stats.error == 0);
}

TEST(an_event_may_be_longer_than_a_piece)
{
	static const struct relay_trace_field fields[] = {{"n", RELAY_TRACE_U32}, {"s", RELAY_TRACE_STRING}};
	static const struct relay_trace_event event = {
	    .provider = "p", .name = "long", .fields = fields, .n_fields = 2};
	AUTOPTR(rchan_buf) buf = make_packets(1 << 19, RELAY_NO_OVERWRITE);
	AUTOPTR(relay_merge) merge = live_merge();
	static char data[200000];
	uint32_t number = 1;

	CHECK_EQ(relay_layouts_declare(relay_merge_layouts(merge, 0), 1, &event), 0);
	CHECK_EQ(relay_merge_add_buffer(merge, 0, 0, buf, true), 0);
	write_number(buf, 0);
	memset(data, 'x', sizeof(data) - 1);
	memcpy(data, &number, sizeof(number));
	CHECK_EQ(write_event(buf, 1, data, sizeof(data)), 0);
	write_number(buf, 2);
	char all[64] = "";
	do {
		relay_merge_look(merge, false);
		const char *more = given(merge);
		snprintf(all + strlen(all), sizeof(all) - strlen(all), "%s,", more);
	} while (relay_merge_is_behind(merge));
	CHECK_EQ(strcmp(all, "0,,,1 2,"), 0);
}

TEST(a_program_that_writes_old_times_does_not_hold_up_others)
{
	struct relay_merge *merge = live_merge();
	struct rchan_buf *old = make_packets(128, RELAY_OVERWRITE), *other = make_packets(SUBBUF, RELAY_NO_OVERWRITE);
	uint64_t time = 1;
	bool is_given = false;

	CHECK_EQ(relay_merge_add_buffer(merge, 0, 0, old, true), 0);
	CHECK_EQ(relay_merge_add_buffer(merge, 0, 1, other, true), 0);
	write_number(other, 5);
	/* It is never at an end. */
	for (int i = 0; i < 200 && !is_given; i++) {
		for (int j = 0; j < 100; j++)
			write_old(old, &time);
		relay_merge_look(merge, false);
		is_given = gives(merge, 5);
		CHECK(is_given || relay_merge_is_behind(merge));
	}
	CHECK(is_given);
	relay_merge_free(merge);
	relay_buf_release(old);
	relay_buf_release(other);
}

/* Look until nothing is behind: events are given out in the order of their numbers, up to `last`, and none is late. */
static void check_in_order(struct relay_merge *merge, uint64_t last)
{
	struct relay_merge_stats stats;
	uint64_t before = 0;

	do {
		relay_merge_look(merge, false);
		for (const struct relay_event *event; (event = relay_merge_next(merge));) {
			CHECK(event->lost || number_of(event) >= before);
			before = event->lost ? before : number_of(event);
		}
	} while (relay_merge_is_behind(merge));
	relay_merge_stats(merge, &stats);
	CHECK_EQ(stats.late, 0);
	CHECK_EQ(before, last);
}

TEST(what_is_left_of_an_overwritten_buffer_comes_in_the_order_of_its_times)
{
	/* Where the oldest event is in the memory differs, and so where a piece ends. */
	for (uint32_t n = 1000; n < 4000; n += 200) {
		AUTOPTR(rchan_buf) a = make_packets(SUBBUF, RELAY_OVERWRITE);
		AUTOPTR(rchan_buf) b = make_packets(SUBBUF, RELAY_OVERWRITE);
		AUTOPTR(relay_merge) merge = live_merge();
		uint32_t number = 0;

		CHECK_EQ(relay_merge_add_buffer(merge, 0, 0, a, false), 0);
		CHECK_EQ(relay_merge_add_buffer(merge, 0, 1, b, false), 0);
		/* Also if they are overwritten between two looks. */
		for (int i = 0; i < 2; i++) {
			while (number < (uint32_t)(i + 1) * n)
				write_number(a, ++number);
			write_number(b, ++number);
			check_in_order(merge, number);
		}
	}
}

TEST(what_comes_late_is_given_out_and_marked)
{
	static const struct relay_export_options text = {.format = RELAY_EXPORT_TEXT, .marks_late = 1},
						 json = {.format = RELAY_EXPORT_JSON, .marks_late = 1};
	const struct relay_export_options *formats[] = {&text, &json};
	const char *marks[] = {" late\n", ",\"late\":true,"}, *data;

	for (int i = 0; i < 2; i++) {
		struct relay_merge *merge = live_merge();
		struct relay_export *exporter = relay_export_new(merge, formats[i]);
		struct rchan_buf *a = make_packets(SUBBUF, RELAY_NO_OVERWRITE);
		struct rchan_buf *b = make_packets(SUBBUF, RELAY_NO_OVERWRITE);
		uint64_t time = 1;

		CHECK_EQ(relay_merge_add_buffer(merge, 0, 0, a, true), 0);
		write_number(a, 5);
		relay_merge_look(merge, false);
		ssize_t length = relay_export_next(exporter, &data);
		CHECK(length > 0 && !memmem(data, (size_t)length, marks[i], strlen(marks[i])));
		CHECK_EQ(relay_merge_add_buffer(merge, 0, 1, b, true), 0);
		write_old(b, &time);
		relay_merge_look(merge, false);
		length = relay_export_next(exporter, &data);
		CHECK(length > 0 && memmem(data, (size_t)length, marks[i], strlen(marks[i])));
		struct relay_merge_stats stats;
		relay_merge_stats(merge, &stats);
		CHECK_EQ(stats.late, 1);
		relay_export_free(exporter);
		relay_merge_free(merge);
		relay_buf_release(a);
		relay_buf_release(b);
	}
}

TEST(losses_without_events_are_told)
{
	AUTOPTR(rchan_buf) buf = make_packets(128, RELAY_NO_OVERWRITE);
	AUTOPTR(relay_merge) merge = live_merge();
	uint32_t number = 0, n_written = 0;

	CHECK_EQ(relay_merge_add_buffer(merge, 0, 0, buf, true), 0);
	while (write_event(buf, 0, &number, sizeof(number)) == 0)
		n_written++;
	for (size_t n = 0; n < n_written; relay_merge_look(merge, false))
		for (const char *at = given(merge); (at = strchr(at, '0')); at++)
			n++;
	CHECK_EQ(write_event(buf, 0, &number, sizeof(number)), -ENOSPC);
	relay_merge_finish(merge, 0);
	relay_merge_look(merge, false);
	given(merge);
	relay_merge_look(merge, false);
	CHECK(relay_merge_next(merge) == NULL && relay_merge_is_ended(merge));
	struct relay_merge_stats stats;
	relay_merge_stats(merge, &stats);
	CHECK_EQ(stats.lost, 2);
	CHECK_EQ(stats.events, n_written);
}

TEST(processes_come_and_go)
{
	struct relay_merge *merge = live_merge();
	struct rchan_buf *kept = make_packets(SUBBUF, RELAY_NO_OVERWRITE);

	CHECK_EQ(relay_merge_add_buffer(merge, 0, 0, kept, true), 0);
	for (uint32_t i = 0; i < 20; i++) {
		struct relay_merge_process process = a_process(one_u32());
		struct rchan_buf *buf = make_packets(SUBBUF, RELAY_NO_OVERWRITE);
		struct relay_merge_process_stats stats;
		char expected[16];

		process.clock = RELAY_MONO;
		/* The number of the last one. */
		CHECK_EQ(relay_merge_add_process(merge, &process), 1);
		CHECK_EQ(relay_merge_add_buffer(merge, 1, 0, buf, true), 0);
		write_number(buf, i);
		write_number(kept, i);
		relay_merge_finish(merge, 1);
		relay_merge_look(merge, false);
		snprintf(expected, sizeof(expected), "%u %u", i, i);
		CHECK_GIVEN(merge, expected);
		relay_merge_look(merge, false);
		CHECK_GIVEN(merge, "");
		CHECK_EQ(relay_merge_process_stats(merge, 1, &stats), 0);
		CHECK_EQ(stats.n_open, 0);
		CHECK_EQ(relay_merge_remove(merge, 1), 0);
		CHECK_EQ(relay_merge_remove(merge, 1), -EINVAL);
		relay_buf_release(buf);
	}
	CHECK_EQ(relay_merge_remove(merge, 0), 0);
	CHECK(relay_merge_look(merge, false) == UINT64_MAX && !relay_merge_is_behind(merge));
	CHECK_GIVEN(merge, "");
	CHECK(relay_merge_is_ended(merge));
	relay_merge_free(merge);
	relay_buf_release(kept);
}
