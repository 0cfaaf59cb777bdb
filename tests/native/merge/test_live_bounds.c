/* SPDX-License-Identifier: MIT */
/* What a merge of buffers does not leave out, hold up or keep: whatever their programs write, and however much of it. */
#define _GNU_SOURCE
#include "half_written.h"
#include "live.h"

#include <malloc.h>

LIBRARY(static);

enum {
	QUEUE_LIMIT = 1 << 22, /* QUEUE_MAX of native/src/merge/live.c */
	EVENT_BYTES = RELAY_TRACE_HEAD_BYTES + sizeof(uint32_t),
	MAX_LOOKS = 1000,
	UNDECLARED = 8
};

static void add_buffers(struct relay_merge *merge, struct rchan_buf *a, struct rchan_buf *b)
{
	CHECK_EQ(relay_merge_add_buffer(merge, 0, 0, a, true), 0);
	if (b)
		CHECK_EQ(relay_merge_add_buffer(merge, 0, 1, b, true), 0);
}

/* What is given out by looks until none is worth while. */
static const char *given_by_looks(struct relay_merge *merge)
{
	static char text[1 << 12];
	int looks = 0;

	text[0] = 0;
	do {
		relay_merge_look(merge, false);
		const char *more = given(merge);
		size_t n = strlen(text);
		CHECK(n + strlen(more) + 2 < sizeof(text) && looks++ < MAX_LOOKS);
		snprintf(text + n, sizeof(text) - n, "%s%s", n && *more ? " " : "", more);
	} while (relay_merge_is_behind(merge));
	return text;
}

TEST(a_stream_whose_queue_was_full_is_behind_again)
{
	const uint32_t n = QUEUE_LIMIT / EVENT_BYTES + 50000;
	AUTOPTR(rchan_buf) a = make_packet_buf(1 << 20, 8, RELAY_NO_OVERWRITE);
	AUTOPTR(rchan_buf) b = make_packet_buf(1 << 20, 8, RELAY_NO_OVERWRITE);
	AUTOPTR(relay_merge) merge = live_merge();
	struct relay_merge_stats stats;

	add_buffers(merge, a, b);
	for (uint32_t i = 0; i < 2 * n; i++)
		write_number(i < n ? b : a, i);
	/* While those of b are given out, those of a wait. */
	uint32_t n_given = 0;
	do {
		relay_merge_look(merge, false);
		for (const struct relay_event *event; (event = relay_merge_next(merge)); n_given++)
			CHECK_EQ(number_of(event), n_given);
	} while (relay_merge_is_behind(merge));
	CHECK_EQ(n_given, 2 * n);
	relay_merge_stats(merge, &stats);
	CHECK_EQ(stats.lost, 0);
}

TEST(many_empty_sub_buffers_are_not_the_end)
{
	AUTOPTR(rchan_buf) a = make_packet_buf(256, 512, RELAY_NO_OVERWRITE);
	AUTOPTR(rchan_buf) b = make_packets(SUBBUF, RELAY_NO_OVERWRITE);
	AUTOPTR(relay_merge) merge = live_merge();

	add_buffers(merge, a, b);
	for (int i = 0; i < 350; i++)
		CHECK_EQ(relay_buf_flush(a), 0);
	write_number(a, 1);
	write_number(b, 2);
	CHECK_TEXT(given_by_looks(merge), "1 2");
}

/* A process has ended: all that was written is given out, or counted as lost. */
static void check_end(struct relay_merge *merge, uint64_t events, uint64_t lost)
{
	struct relay_merge_stats stats;

	relay_merge_finish(merge, 0);
	for (int i = 0; !relay_merge_is_ended(merge); i++) {
		CHECK(i < MAX_LOOKS);
		relay_merge_look(merge, false);
		given(merge);
	}
	relay_merge_stats(merge, &stats);
	CHECK_EQ(stats.events, events);
	CHECK_EQ(stats.lost, lost);
}

TEST(what_is_left_of_the_last_sub_buffer_is_counted)
{
	const uint32_t modes[] = {RELAY_NO_OVERWRITE, RELAY_OVERWRITE}, number = 1;

	for (int i = 0; i < 2; i++) {
		AUTOPTR(rchan_buf) buf = make_packets(SUBBUF, modes[i]);
		AUTOPTR(relay_merge) merge = live_merge();

		add_buffers(merge, buf, NULL);
		write_number(buf, 0);
		CHECK_EQ(write_event(buf, UNDECLARED, &number, sizeof(number)), 0);
		write_number(buf, 2);
		write_number(buf, 3);
		check_end(merge, 1, 3);
	}
}

TEST(what_is_torn_in_the_last_sub_buffer_is_counted)
{
	const uint32_t modes[] = {RELAY_NO_OVERWRITE, RELAY_OVERWRITE};

	for (int i = 0; i < 2; i++) {
		AUTOPTR(rchan_buf) buf = make_packets(SUBBUF, modes[i]);
		AUTOPTR(relay_merge) merge = live_merge();

		add_buffers(merge, buf, NULL);
		write_number(buf, 0);
		leave_hole(buf, EVENT_BYTES);
		check_end(merge, 1, 1);
	}
}

TEST(an_empty_buffer_of_an_earlier_boot_holds_up_nothing)
{
	const uint64_t day = 86400ull * 1000000000;
	AUTOPTR(rchan_buf) a = make_packets(SUBBUF, RELAY_NO_OVERWRITE);
	AUTOPTR(rchan_buf) b = make_packets(SUBBUF, RELAY_NO_OVERWRITE);
	AUTOPTR(relay_merge) merge = relay_merge_new(0, UINT64_MAX);
	struct relay_merge_process process = a_process(one_u32());

	process.clock = RELAY_MONO;
	process.is_past = true;
	CHECK_EQ(relay_merge_add_process(merge, &process), 0);
	add_buffers(merge, a, b);
	for (uint32_t i = 0; i < 3; i++)
		write_at(a, now() + day, i);
	CHECK_TEXT(given_by_looks(merge), "0 1 2");
}

TEST(a_loss_is_since_a_time_before_it)
{
	AUTOPTR(rchan_buf) buf = make_packets(128, RELAY_NO_OVERWRITE);
	AUTOPTR(relay_merge) merge = live_merge();
	const struct relay_event *event;
	const uint32_t number = 0;
	uint64_t last = 0;

	alarm(DEADLINE_SECONDS);
	add_buffers(merge, buf, NULL);
	while (write_event(buf, 0, &number, sizeof(number)) == 0)
		;
	/* The last look finds nothing. */
	do {
		relay_merge_look(merge, false);
		while ((event = relay_merge_next(merge)))
			last = event->time;
	} while (relay_merge_is_behind(merge) || !last);
	relay_merge_look(merge, false);
	CHECK(relay_merge_next(merge) == NULL);
	uint64_t at = now();
	CHECK_EQ(write_event(buf, 0, &number, sizeof(number)), -ENOSPC);
	/* It is told a second later, after many looks that have seen it. */
	while (!(event = relay_merge_next(merge))) {
		usleep(10000);
		relay_merge_look(merge, false);
	}
	CHECK(event->lost && event->time >= at);
	CHECK(event->since >= last && event->since <= at);
}

TEST(a_program_that_resets_its_buffer_does_not_hold_up_others)
{
	/* Its events are never read to the end. */
	for (int period = 1; period <= 4; period++) {
		AUTOPTR(rchan_buf) hostile = make_packet_buf(256, 16, RELAY_OVERWRITE);
		AUTOPTR(rchan_buf) other = make_packets(SUBBUF, RELAY_NO_OVERWRITE);
		AUTOPTR(relay_merge) merge = live_merge();
		bool is_given = false;
		uint64_t time = 1;

		add_buffers(merge, hostile, other);
		for (int i = 0; i < 1000; i++)
			write_old(hostile, &time);
		write_number(other, 5);
		for (int i = 0; i < MAX_LOOKS && !is_given; i++) {
			relay_merge_look(merge, false);
			is_given = gives(merge, 5);
			if (i % period == 0)
				hostile->control->resets += 2;
		}
		CHECK(is_given);
	}
}

/* Of AddressSanitizer, under which malloc() does not count for mallinfo2(). */
size_t __sanitizer_get_current_allocated_bytes(void) __attribute__((weak));

static size_t allocated(void)
{
	struct mallinfo2 info = mallinfo2();

	if (__sanitizer_get_current_allocated_bytes)
		return __sanitizer_get_current_allocated_bytes();
	return info.uordblks + info.hblkhd;
}

/* n packets wait, each with one event. behind: bytes of an event in the same sub-buffer that is not declared; 0: there is none */
static void check_bounded(size_t behind, int n)
{
	AUTOPTR(rchan_buf) buf = make_packet_buf(1 << 16, 4, RELAY_OVERWRITE);
	AUTOPTR(relay_merge) merge = live_merge();
	static unsigned char data[60000];
	size_t before = allocated();

	add_buffers(merge, buf, NULL);
	relay_merge_limit(merge, 0);
	for (int i = 0; i < n; i++) {
		write_number(buf, 1);
		if (behind) {
			CHECK_EQ(write_event(buf, UNDECLARED, data, behind), 0);
			CHECK_EQ(relay_buf_flush(buf), 0);
		}
		relay_merge_look(merge, false);
		CHECK(relay_merge_next(merge) == NULL);
		CHECK(allocated() < before + 3 * QUEUE_LIMIT);
	}
}

TEST(packets_that_wait_take_no_more_memory_than_the_limit)
{
	check_bounded(60000, 500);
	/* Their heads are longer than their events. */
	check_bounded(0, 200000);
}

TEST(files_of_slices_are_not_made_of_buffers)
{
	AUTOPTR(rchan_buf) buf = make_packets(SUBBUF, RELAY_NO_OVERWRITE);
	AUTOPTR(relay_merge) merge = live_merge();

	add_buffers(merge, buf, NULL);
	for (uint32_t format = RELAY_EXPORT_TEXT; format <= RELAY_EXPORT_PERFETTO; format++) {
		const struct relay_export_options options = {.format = format};
		bool is_refused = format == RELAY_EXPORT_CHROME || format == RELAY_EXPORT_PERFETTO;

		errno = 0;
		struct relay_export *exporter = relay_export_new(merge, &options);
		CHECK_EQ(exporter == NULL, is_refused);
		CHECK_EQ(errno, is_refused ? EINVAL : 0);
		relay_export_free(exporter);
	}
}

TEST(no_buffer_comes_to_files_of_slices)
{
	const struct relay_export_options options = {.format = RELAY_EXPORT_PERFETTO};
	AUTOPTR(rchan_buf) buf = make_packets(SUBBUF, RELAY_NO_OVERWRITE);
	AUTOPTR(relay_merge) merge = live_merge();
	struct relay_export *exporter = relay_export_new(merge, &options);

	CHECK(exporter != NULL);
	CHECK_EQ(relay_merge_add_buffer(merge, 0, 0, buf, true), -EINVAL);
	relay_export_free(exporter);
}
