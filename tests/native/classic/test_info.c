/* SPDX-License-Identifier: MIT */
/* What relay_info() tells of a channel of 2003. */
#define _GNU_SOURCE
#include "classic_channel.h"

SCHEMES(lockless, locking);

TEST(info_of_a_new_channel)
{
	AUTO_ID id = open_channel(64, BULK | RELAY_TIMESTAMP_TSC, &noting, 4, 4, 4);
	struct rchan_info info;

	memset(&info, 0xff, sizeof(info));
	CHECK_EQ(relay_info(id, &info), 0);
	CHECK_FIELDS(info,
	             (flags, scheme_flag() | BULK | (relay_clock_is_available(RELAY_TSC) ? RELAY_TIMESTAMP_TSC : 0)),
	             (buf_size, 64), (n_bufs, 2));
	CHECK(info.alloc_size >= 2 * 64);
	CHECK(info.buf_addr != NULL);
	CHECK_FIELDS(info, (bufs_produced, 0), (bufs_consumed, 0), (buf_id, 0), (cur_idx, 8), (events_lost, 0),
	             (suspended, 0));
	for (int i = 0; i < RELAY_MAX_BUFS; i++) {
		CHECK_EQ(info.unused_bytes[i], 0);
		CHECK_EQ(info.buffer_complete[i], 0);
	}
}

TEST(alloc_size_is_what_the_store_has_of_it)
{
	AUTO_ID id = open_plain();
	AUTOPTR(rchan_buf) buf = open_memory();

	CHECK_EQ(info_of(id).alloc_size, stats_of(buf).file_bytes);
}

TEST(info_follows_the_current_sub_buffer_round)
{
	AUTO_ID id = open_plain();

	for (int number = 0; number < 7; number++) {
		int length = 33 + number, here = number % 2, before = 1 - here;
		CHECK_EQ(write_n(id, 'a', (size_t)length), length);
		struct rchan_info info = info_of(id);
		CHECK_FIELDS(info, (buf_id, number), (bufs_produced, number), (cur_idx, here * 64 + length));
		CHECK_EQ(info.unused_bytes[here], 0); /* it is not finished */
		CHECK_EQ(info.buffer_complete[here], 0);
		CHECK_EQ(info.unused_bytes[before], number ? 64 - (length - 1) : 0);
		CHECK_EQ(info.buffer_complete[before], number > 0);
		relay_buffers_consumed(id, 1);
		CHECK_EQ(info_of(id).bufs_consumed, number);
	}
}

TEST(info_of_a_suspended_channel_has_all_sub_buffers_complete)
{
	answers.full = 1;
	answers.footer = "feet";
	AUTO_ID id = open_channel(64, BULK, &noting, 0, 4, 0);

	CHECK_EQ(write_n(id, 'a', 60), 60);
	CHECK_EQ(write_n(id, 'b', 30), 30);
	CHECK_EQ(write_n(id, 'c', 40), -ENOSPC);
	struct rchan_info info = info_of(id);
	CHECK_EQ(info.suspended, 1);
	CHECK_EQ(info.bufs_produced, 2);
	CHECK_EQ(info.buf_id, 1); /* the next one has not begun */
	CHECK_EQ(info.unused_bytes[0], 0);
	CHECK_EQ(info.unused_bytes[1], 30);
	CHECK_EQ(info.buffer_complete[0], 1);
	CHECK_EQ(info.buffer_complete[1], 1);
	CHECK_EQ(info.events_lost, 1);
}

TEST(skipping_what_info_says_is_unused_gives_what_read_gives)
{
	answers.full = 1;
	answers.header = "head";
	AUTO_ID id = open_channel(128, BULK, &noting, 4, 8, 0);
	char mapped[256 + 1];
	size_t n = 0;

	for (size_t length = 20; write_n(id, 'a', length) > 0; length += 3)
		;
	struct rchan_info info = info_of(id);
	for (int i = 0; i < 2; i++) {
		size_t used = info.buf_size - (size_t)info.unused_bytes[i];
		CHECK(info.unused_bytes[i] >= 8);
		memcpy(mapped + n, info.buf_addr + (size_t)i * info.buf_size, used);
		n += used;
	}
	mapped[n] = 0;
	CHECK_READS(mapped);
}
