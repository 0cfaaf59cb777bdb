/* SPDX-License-Identifier: MIT */
/* The callbacks of a channel of 2003: when sub-buffers begin, end and are delivered, and what each is told. */
#define _GNU_SOURCE
#include "classic_channel.h"

#include "base/clock.h"
#include <sys/mman.h>
#include <sys/wait.h>

SCHEMES(lockless, locking);

/* --- the order of callbacks --- */

TEST(the_first_sub_buffer_starts_in_relay_open)
{
	AUTO_ID id = open_plain();

	CHECK_CALLS("s");
	CHECK_EQ(calls[0].id, id);
	CHECK_EQ(calls[0].number, 0);
}

TEST(a_write_that_does_not_fit_ends_delivers_and_starts)
{
	AUTO_ID id = open_plain();

	CHECK_EQ(write_n(id, 'a', 40), 40);
	CHECK_CALLS("s");
	CHECK_EQ(write_n(id, 'b', 40), 40);
	CHECK_CALLS("eds");
	CHECK_EQ(last('s')->number, 1);
	CHECK_EQ(write_n(id, 'c', 24), 24);
	CHECK_CALLS(""); /* full to the last byte: the next write finds out */
	CHECK_READS(
	    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaabbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbcccccccccccccccccccccccc");
}

TEST(a_full_buffer_asks_before_it_overwrites)
{
	AUTO_ID id = open_plain();

	CHECK_EQ(write_n(id, 'a', 64), 64);
	CHECK_EQ(write_n(id, 'b', 64), 64);
	CHECK_CALLS("seds");
	CHECK_EQ(write_n(id, 'c', 64), 64);
	CHECK_CALLS("edfs");
	CHECK_EQ(last('f')->id, id);
	CHECK_EQ(last('s')->number, 2);
	CHECK_EQ(write_n(id, 'd', 10), 10);
	CHECK_CALLS("edfs");
	CHECK_FIELDS(info_of(id), (suspended, 0), (events_lost, 0));
}

TEST(each_callback_may_be_missing)
{
	for (unsigned missing = 0; missing < 16; missing++) {
		struct rchan_callbacks some = noting;
		if (missing & 1)
			some.buffer_start = NULL;
		if (missing & 2)
			some.buffer_end = NULL;
		if (missing & 4)
			some.deliver = NULL;
		if (missing & 8)
			some.buffers_full = NULL;
		int id = open_channel(64, BULK, &some, 0, 0, 0);
		for (char letter = 'a'; letter <= 'd'; letter++)
			CHECK_EQ(write_n(id, letter, 64), 64);
		CHECK_EQ(relay_close(id), 0);
		char expected[32] = "", *at = expected;
		for (const char *kind = "sedsedfsedfsed"; *kind; kind++)
			if (!(missing & 1u << (strchr("sedf", *kind) - "sedf")))
				*at++ = *kind;
		CHECK_CALLS(expected);
	}
}

TEST(without_a_table_a_channel_goes_on_over_the_oldest)
{
	AUTO_ID id = open_channel(64, BULK, NULL, 8, 8, 8);

	for (char letter = 'a'; letter <= 'd'; letter++)
		CHECK_EQ(write_n(id, letter, 48), 48);
	CHECK_EQ(info_of(id).bufs_produced, 4); /* the first held none: channel_start_reserve */
	CHECK_EQ(info_of(id).suspended, 0);
	AUTOPTR(rchan_buf) buf = open_memory();
	char data[256];
	/* Zeros in place of the headers, nothing in place of the footers. */
	CHECK_EQ(consume_into(buf, data, sizeof(data)), 2 * (8 + 48));
	CHECK(memcmp(data, "\0\0\0\0\0\0\0\0ccc", 11) == 0 && memcmp(data + 56, "\0\0\0\0\0\0\0\0ddd", 11) == 0);
}

TEST(callbacks_are_called_in_the_process_that_writes)
{
	struct call *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int status, id = open_plain();

	CHECK(shared != MAP_FAILED);
	CHECK_EQ(write_n(id, 'a', 64), 64);
	CHECK_CALLS("s");
	pid_t child = fork();
	if (child == 0) {
		CHECK_EQ(write_n(id, 'b', 20), 20);
		CHECK_CALLS("eds");
		*shared = *last('s');
		_exit(0);
	}
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK_EQ(status, 0);
	CHECK_EQ(shared->pid, child);
	CHECK_EQ(shared->number, 1);
	CHECK_CALLS(""); /* here */
	CHECK_EQ(write_n(id, 'c', 20), 20);
	CHECK_EQ(last('s')->pid, getpid());
	CHECK_FIELDS(info_of(id), (bufs_produced, 1), (cur_idx, 64 + 40));
	CHECK_EQ(relay_close(id), 0);
}

/* --- buffer_start and buffer_end: positions, reserves, what they return --- */

TEST(buffer_start_is_given_the_reserve_of_each_sub_buffer)
{
	answers.header = "<head>..";
	AUTO_ID id = open_channel(64, BULK, &noting, 8, 0, 0);
	char *memory = info_of(id).buf_addr;

	CHECK(last('s')->at == memory);
	CHECK_EQ(info_of(id).cur_idx, 8);
	CHECK_EQ(write_n(id, 'a', 56), 56);
	CHECK_EQ(write_n(id, 'b', 1), 1);
	CHECK(last('s')->at == memory + 64);
	CHECK_READS("<head>..aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa<head>..b");
}

TEST(the_first_sub_buffer_has_room_for_the_channels_header)
{
	answers.header = "<head>";
	answers.first_header = "<head><of the channel>";
	AUTO_ID id = open_channel(64, BULK, &noting, 6, 0, 16);

	CHECK_EQ(last('s')->number, 0);
	CHECK_EQ(info_of(id).cur_idx, 22);
	CHECK_EQ(write_n(id, 'a', 42), 42);
	CHECK_CALLS("s");
	CHECK_EQ(write_n(id, 'b', 58), 58);
	CHECK_CALLS("eds");
	CHECK_EQ(last('s')->number, 1);
	char expected[256];
	snprintf(expected, sizeof(expected), "<head><of the channel>%s<head>%s", text_of('a', 42), text_of('b', 58));
	CHECK_READS(expected);
}

TEST(a_record_that_only_the_first_sub_buffer_has_no_room_for_goes_into_the_second)
{
	answers.header = "head";
	answers.first_header = "head+channel";
	AUTO_ID id = open_channel(64, BULK, &noting, 4, 0, 8);

	CHECK_EQ(write_n(id, 'a', 60), 60);
	CHECK_CALLS("seds");
	CHECK_FIELDS(info_of(id), (buf_id, 1), (events_lost, 0));
}

TEST(what_buffer_start_leaves_of_its_reserve_is_zero)
{
	answers.header = "head";
	AUTO_ID id = open_channel(64, BULK, &noting, 8, 0, 0);

	/* Also where a lap before there was something else. */
	for (char letter = 'a'; letter <= 'c'; letter++)
		CHECK_EQ(write_n(id, letter, 56), 56);
	CHECK(memcmp(info_of(id).buf_addr, "head\0\0\0\0ccc", 11) == 0);
	answers.header = NULL; /* returns 0 */
	CHECK_EQ(write_n(id, 'd', 56), 56);
	CHECK(memcmp(info_of(id).buf_addr + 64, "\0\0\0\0\0\0\0\0ddd", 11) == 0);
	AUTOPTR(rchan_buf) buf = open_memory();
	char data[256];
	CHECK_EQ(consume_into(buf, data, sizeof(data)), 128);
}

TEST(buffer_end_is_given_what_is_unused)
{
	AUTO_ID id = open_channel(64, BULK, &noting, 0, 8, 0);
	char *memory = info_of(id).buf_addr;

	CHECK_EQ(write_n(id, 'a', 40), 40);
	CHECK_EQ(write_n(id, 'b', 17), 17);
	CHECK_FIELDS(*last('e'), (id, id), (at, memory + 40), (end, memory + 64));
	CHECK_EQ(write_n(id, 'c', 39), 39);
	CHECK_EQ(write_n(id, 'd', 1), 1);
	CHECK(last('e')->at == memory + 64 + 56); /* end_reserve at least */
	CHECK(last('e')->end == memory + 128);
}

TEST(what_buffer_end_writes_is_read_behind_the_records)
{
	answers.footer = "[foot]";
	AUTO_ID id = open_channel(64, BULK, &noting, 0, 8, 0);

	CHECK_EQ(write_n(id, 'a', 40), 40);
	CHECK_EQ(write_n(id, 'b', 40), 40);
	CHECK_READS("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa[foot]bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb");
	CHECK_EQ(info_of(id).unused_bytes[0], 64 - 46);
}

static int store_but_say(int result, char *at)
{
	memset(at, '#', 8);
	return result;
}

static int said;
static int end_that_says(int id, char *at, char *end, struct timeval time, uint64_t tsc, int using_tsc)
{
	(void)id, (void)end, (void)time, (void)tsc, (void)using_tsc;
	return store_but_say(said, at);
}

static int open_saying(void)
{
	static struct rchan_callbacks saying;

	saying = noting;
	saying.buffer_end = end_that_says;
	return open_channel(64, BULK, &saying, 0, 8, 0);
}

static void write_and_say(int id, char letter, int n, int result)
{
	said = result;
	CHECK_EQ(write_n(id, letter, (size_t)n), n);
}

TEST(what_buffer_end_stores_and_does_not_return_is_not_read)
{
	AUTO_ID id = open_saying();

	CHECK_EQ(write_n(id, 'a', 40), 40);
	write_and_say(id, 'b', 40, 0);
	CHECK_EQ(info_of(id).unused_bytes[0], 24);
	write_and_say(id, 'c', 40, 3);
	CHECK_EQ(info_of(id).unused_bytes[1], 21);
	CHECK_READS("bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb###cccccccccccccccccccccccccccccccccccccccc");
}

TEST(nonsense_that_buffer_end_returns_is_cut_to_what_there_is)
{
	AUTO_ID id = open_saying();

	CHECK_EQ(write_n(id, 'a', 56), 56);
	write_and_say(id, 'b', 56, 1000);
	CHECK_EQ(info_of(id).unused_bytes[0], 0);
	write_and_say(id, 'c', 56, -1);
	CHECK_EQ(info_of(id).unused_bytes[1], 8);
}

TEST(reserves_leave_so_much_less_for_records)
{
	AUTO_ID id = open_channel(64, BULK, &noting, 10, 6, 0);

	CHECK_EQ(write_n(id, 'a', 49), -EMSGSIZE);
	CHECK_EQ(write_n(id, 'a', 65), -EMSGSIZE);
	CHECK_CALLS("s");
	CHECK_EQ(write_n(id, 'a', 48), 48);
	CHECK_CALLS("");
	CHECK_EQ(write_n(id, 'b', 1), 1);
	CHECK_CALLS("eds");
	CHECK_EQ(info_of(id).events_lost, 0); /* those that were too large are counted as such */
	AUTOPTR(rchan_buf) buf = open_memory();
	CHECK_EQ(stats_of(buf).lost_too_large_records, 2);
}

/* --- clocks --- */

static uint64_t us_of(struct timeval time)
{
	return (uint64_t)time.tv_sec * 1000000 + (uint64_t)time.tv_usec;
}

static uint64_t us_now(void)
{
	struct timeval now;

	gettimeofday(&now, NULL);
	return us_of(now);
}

static void check_clocks(const struct call *call, const uint64_t us[2], const uint64_t tsc[2], int using_tsc)
{
	/* One more: both are cut to microseconds. */
	CHECK(us_of(call->time) + 1 >= us[0] && us_of(call->time) <= us[1] + 1);
	CHECK_EQ(call->using_tsc, using_tsc);
	CHECK(using_tsc ? call->tsc >= tsc[0] && call->tsc <= tsc[1] : call->tsc == 0);
}

TEST(start_and_end_are_told_both_clocks)
{
	for (uint32_t flag = 0; flag <= RELAY_TIMESTAMP_TSC; flag += RELAY_TIMESTAMP_TSC) {
		int using_tsc = flag && relay_clock_is_available(RELAY_TSC);
		uint64_t us[2] = {us_now()}, tsc[2] = {relay_clock_tsc()};
		AUTO_ID id = open_channel(64, BULK | flag, &noting, 0, 0, 0);
		us[1] = us_now(), tsc[1] = relay_clock_tsc();
		check_clocks(last('s'), us, tsc, using_tsc);
		CHECK_EQ(write_n(id, 'a', 64), 64);
		us[0] = us_now(), tsc[0] = relay_clock_tsc();
		CHECK_EQ(write_n(id, 'b', 64), 64);
		us[1] = us_now(), tsc[1] = relay_clock_tsc();
		check_clocks(last('e'), us, tsc, using_tsc);
		check_clocks(last('s'), us, tsc, using_tsc);
		CHECK_EQ(info_of(id).flags & RELAY_TIMESTAMP_TSC, using_tsc ? RELAY_TIMESTAMP_TSC : 0);
	}
}

/* --- deliver --- */

TEST(bulk_delivers_each_sub_buffer_with_header_and_footer)
{
	answers.header = "head";
	answers.footer = "feet";
	AUTO_ID id = open_channel(64, BULK, &noting, 4, 4, 0);
	char *memory = info_of(id).buf_addr;

	CHECK_EQ(write_n(id, 'a', 40), 40);
	CHECK_CALLS("s");
	CHECK_EQ(write_n(id, 'b', 40), 40);
	CHECK_FIELDS(*last('d'), (id, id), (at, memory), (length, 48));
	CHECK(memcmp(memory, "headaaaa", 8) == 0 && memcmp(memory + 44, "feet", 4) == 0);
	CHECK_EQ(write_n(id, 'c', 40), 40);
	CHECK(last('d')->at == memory + 64);
}

static void check_delivered(const struct call *call)
{
	if (call->kind == 'd')
		CHECK(memcmp(call->at, text_of((char)('a' + n_calls - 2), call->length), call->length) == 0);
}

TEST(packet_delivers_each_write)
{
	int id = open_channel(64, PACKET, &noting, 0, 0, 0);
	char *memory = info_of(id).buf_addr;

	answers.in = check_delivered;
	CHECK_EQ(write_n(id, 'a', 10), 10);
	CHECK_CALLS("sd");
	CHECK_FIELDS(*last('d'), (at, memory), (length, 10));
	CHECK_EQ(write_n(id, 'b', 20), 20);
	CHECK_CALLS("d");
	CHECK_FIELDS(*last('d'), (at, memory + 10), (length, 20), (id, id));
	answers.in = NULL;
	/* That a sub-buffer is finished, buffer_end() tells. */
	CHECK_EQ(write_n(id, 'c', 40), 40);
	CHECK_CALLS("esd");
	CHECK(last('d')->at == memory + 64);
	CHECK_EQ(relay_close(id), 0);
	CHECK_CALLS("e");
}

TEST(a_refused_write_delivers_nothing)
{
	answers.full = 1;
	AUTO_ID id = open_channel(64, PACKET, &noting, 0, 0, 0);

	CHECK_EQ(write_n(id, 'a', 64), 64);
	CHECK_EQ(write_n(id, 'b', 64), 64);
	CHECK_CALLS("sdesd");
	CHECK_EQ(write_n(id, 'c', 64), -ENOSPC);
	CHECK_EQ(write_n(id, 'd', 65), -EMSGSIZE);
	CHECK_CALLS("ef");
}

/* --- relay_close --- */

TEST(close_in_a_child_of_fork_leaves_the_channel)
{
	int status, id = open_plain();

	CHECK_EQ(write_n(id, 'a', 30), 30);
	CHECK_CALLS("s");
	pid_t child = fork();
	if (child == 0) {
		CHECK_EQ(relay_close(id), 0);
		CHECK_CALLS("");
		CHECK_EQ(write_n(id, 'b', 30), -EBADF);
		_exit(0);
	}
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK_EQ(status, 0);
	CHECK_EQ(info_of(id).bufs_produced, 0);
	CHECK_EQ(write_n(id, 'c', 40), 40);
	CHECK_CALLS("eds");
	char expected[256];
	snprintf(expected, sizeof(expected), "%s%s", text_of('a', 30), text_of('c', 40));
	CHECK_READS(expected);
	CHECK_EQ(relay_close(id), 0);
	CHECK_CALLS("ed");
}

TEST(close_finishes_the_last_sub_buffer)
{
	answers.footer = "feet";
	int id = open_channel(64, BULK, &noting, 0, 4, 0);
	char *memory = info_of(id).buf_addr;
	struct rchan_buf *buf = open_memory();

	CHECK_EQ(write_n(id, 'a', 30), 30);
	CHECK_CALLS("s");
	CHECK_EQ(stats_of(buf).produced, 0);
	CHECK_EQ(relay_close(id), 0);
	CHECK_CALLS("ed");
	CHECK(last('e')->at == memory + 30 && last('e')->end == memory + 64);
	CHECK_FIELDS(*last('d'), (at, memory), (length, 34));
	/* Who has it open reads on to the end. */
	CHECK_STATS(buf, (closed, 1), (produced, 1));
	CHECK_DRAINS(buf, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaafeet");
	CHECK_EQ(write_letters(buf, 'z', 1), -EPIPE);
	relay_buf_release(buf);
	CHECK(memory_of("/log/1") == NULL && errno == ENOENT);
}
