/* SPDX-License-Identifier: MIT */
/* Reading one buffer: pieces, limits, the reader's lock, and what overwriting takes away. */
#define _GNU_SOURCE
#include "check.h"

SCHEMES(rseq, lockless, locking);

TEST(partial_reads_join_to_the_whole)
{
	AUTOPTR(rchan_buf) buf = make_buf(10, 4, RELAY_NO_OVERWRITE);
	char out[64] = {0};
	size_t used = 0, n;

	CHECK_EQ(relay_buf_write(buf, "0123456", 7), 0);
	CHECK_EQ(relay_buf_write(buf, "789abcdef", 9), 0);
	CHECK_EQ(relay_buf_write(buf, "ghij", 4), 0);
	while ((n = consume_into(buf, out + used, 3)) > 0)
		used += n;
	CHECK_EQ(strcmp(out, "0123456789abcdefghij"), 0);
	CHECK_STATS(buf, (read_records, 3), (read_bytes, 20));
}

TEST(a_sub_buffer_read_in_part_is_not_free)
{
	AUTOPTR(rchan_buf) buf = make_buf(4, 2, RELAY_NO_OVERWRITE);
	char out[8];

	CHECK_EQ(write_each(buf, "ab", 4), 0);
	CHECK_EQ(consume_into(buf, out, 3), 3);
	CHECK_EQ(write_letters(buf, 'c', 1), -ENOSPC);
	CHECK_EQ(consume_into(buf, out, 1), 1);
	CHECK_EQ(write_letters(buf, 'c', 1), 0);
	CHECK_DRAINS(buf, "bbbbc");
}

TEST(one_read_spans_several_sub_buffers)
{
	AUTOPTR(rchan_buf) buf = make_buf(10, 8, RELAY_NO_OVERWRITE);
	struct relay_span spans[8];
	size_t total;
	int i;

	CHECK_EQ(write_each(buf, "abcde", 7), 0);
	CHECK_EQ(relay_consume_begin(buf, 1000, spans, 8, &total), 5);
	CHECK_EQ(total, 35);
	for (i = 0; i < 5; i++) {
		CHECK_EQ(spans[i].length, 7);
		CHECK_EQ(((const char *)spans[i].data)[6], 'a' + i);
	}
	relay_consume_abort(buf);
	/* As many as there is room for. */
	CHECK_EQ(relay_consume_begin(buf, 1000, spans, 2, &total), 2);
	CHECK_EQ(total, 14);
	relay_consume_end(buf);
	CHECK_DRAINS(buf, "cccccccdddddddeeeeeee");
}

TEST(an_aborted_read_leaves_all_unread)
{
	AUTOPTR(rchan_buf) buf = make_buf(10, 4, RELAY_NO_OVERWRITE);
	struct relay_span spans[4];
	size_t total;

	CHECK_EQ(write_letters(buf, 'a', 7), 0);
	CHECK_EQ(relay_consume_begin(buf, 100, spans, 4, &total), 1);
	CHECK_EQ(total, 7);
	relay_consume_abort(buf);
	relay_consume_end(buf); /* of nothing: no harm */
	CHECK_EQ(stats_of(buf).reads, 0);
	CHECK_DRAINS(buf, "aaaaaaa");
}

TEST(one_consumer_at_a_time)
{
	AUTOPTR(rchan_buf) buf = make_buf(10, 4, RELAY_NO_OVERWRITE), *other = open_again(buf);
	struct relay_span spans[4];
	size_t total;

	CHECK_EQ(write_letters(buf, 'a', 7), 0);
	CHECK_EQ(relay_consume_begin(buf, 100, spans, 4, &total), 1);
	CHECK_EQ(relay_consume_begin(other, 100, spans, 4, &total), -EBUSY);
	CHECK_EQ(relay_buf_subbufs_consumed(other, 1), -EBUSY);
	CHECK_EQ(relay_buf_reset(other), -EBUSY);
	relay_consume_end(buf);
	CHECK_EQ(write_letters(buf, 'b', 3), 0);
	CHECK_DRAINS(other, "bbb");
}

TEST(overwrite_loses_the_oldest_and_counts_it)
{
	AUTOPTR(rchan_buf) buf = make_buf(10, 4, RELAY_OVERWRITE);
	int i;

	for (i = 0; i < 10; i++) {
		CHECK_EQ(write_letters(buf, (char)('a' + i), 3), 0);
		CHECK_EQ(write_letters(buf, (char)('a' + i), 5), 0);
	}
	CHECK_DRAINS(buf, "gggggggghhhhhhhhiiiiiiiijjjjjjjj");
	CHECK_STATS(buf, (lost_overwritten_records, 12), (lost_overwritten_bytes, 48), (read_records, 8),
	            (read_bytes, 32), (records, 20), (lost_full_records, 0));
}

TEST(overwrite_with_one_sub_buffer_keeps_the_newest)
{
	AUTOPTR(rchan_buf) buf = make_buf(4, 1, RELAY_OVERWRITE);

	CHECK_EQ(write_letters(buf, 'a', 4), 0);
	CHECK_EQ(write_letters(buf, 'b', 3), 0);
	CHECK_DRAINS(buf, "bbb");
	CHECK_EQ(stats_of(buf).lost_overwritten_bytes, 4);
}

TEST(a_lapped_reader_is_told)
{
	AUTOPTR(rchan_buf) buf = make_buf(4, 2, RELAY_OVERWRITE);
	struct relay_span spans[4];
	size_t total;

	CHECK_EQ(write_letters(buf, 'a', 4), 0);
	CHECK_EQ(relay_consume_begin(buf, 100, spans, 4, &total), 1);
	CHECK_EQ(relay_consume_valid(buf), 0);
	CHECK_EQ(write_letters(buf, 'b', 4), 0);
	CHECK_EQ(relay_consume_valid(buf), 0);
	CHECK_EQ(write_letters(buf, 'c', 4), 0);
	CHECK_EQ(relay_consume_valid(buf), -EOVERFLOW);
	relay_consume_abort(buf);
	CHECK_DRAINS(buf, "bbbbcccc");
	CHECK_STATS(buf, (lost_overwritten_records, 1), (read_records, 2));
}

TEST(overwrite_after_a_partial_read_counts_what_was_not_read)
{
	AUTOPTR(rchan_buf) buf = make_buf(10, 2, RELAY_OVERWRITE);
	char out[16];

	CHECK_EQ(write_letters(buf, 'a', 5), 0);
	CHECK_EQ(consume_into(buf, out, 16), 5);
	CHECK_EQ(write_letters(buf, 'b', 5), 0);
	CHECK_EQ(write_each(buf, "cccc", 5), 0);
	CHECK_DRAINS(buf, "cccccccccccccccccccc");
	CHECK_STATS(buf, (lost_overwritten_records, 1), (lost_overwritten_bytes, 5));
}

static uint64_t looked_to; /* stream position behind what look() returned last */

/* What is unread behind the next `skip` bytes, up to max bytes, as text; it stays unread. */
static const char *look(struct rchan_buf *buf, uint64_t skip, size_t max)
{
	static char text[256];
	struct relay_span spans[8];
	size_t total, used = 0;
	int n = relay_consume_begin_behind(buf, skip, max, spans, 8, &total, &looked_to), i;

	CHECK(n >= 0 && total <= max && total < sizeof(text));
	for (i = 0; i < n; used += spans[i++].length)
		memcpy(text + used, spans[i].data, spans[i].length);
	CHECK_EQ(used, total);
	relay_consume_abort(buf);
	text[used] = 0;
	return text;
}

TEST(what_is_looked_at_stays_unread)
{
	AUTOPTR(rchan_buf) buf = make_buf(10, 4, RELAY_NO_OVERWRITE);

	CHECK_EQ(write_each(buf, "abc", 7), 0);
	CHECK_EQ(strcmp(look(buf, 0, 3), "aaa"), 0);
	CHECK_EQ(strcmp(look(buf, 5, 100), "aabbbbbbbccccccc"), 0);
	CHECK_EQ(strcmp(look(buf, 7, 7), "bbbbbbb"), 0);
	CHECK_EQ(strcmp(look(buf, 13, 3), "bcc"), 0);
	CHECK_EQ(strcmp(look(buf, 20, 100), "c"), 0);
	CHECK_EQ(looked_to, 21);
	CHECK_EQ(strcmp(look(buf, 21, 100), ""), 0);
	CHECK_EQ(strcmp(look(buf, 1000, 100), ""), 0);
	CHECK_STATS(buf, (unread_bytes, 21), (reads, 0));
	CHECK_DRAINS(buf, "aaaaaaabbbbbbbccccccc");
}

TEST(looking_begins_where_reading_ended)
{
	AUTOPTR(rchan_buf) buf = make_buf(10, 4, RELAY_NO_OVERWRITE);
	char out[8];

	CHECK_EQ(write_each(buf, "ab", 4), 0);
	CHECK_EQ(consume_into(buf, out, 3), 3);
	CHECK_EQ(strcmp(look(buf, 0, 100), "abbbb"), 0);
	CHECK_EQ(strcmp(look(buf, 1, 2), "bb"), 0);
	CHECK_EQ(looked_to, 6);
}

TEST(consume_to_passes_over_data_and_padding)
{
	AUTOPTR(rchan_buf) buf = make_buf(10, 4, RELAY_NO_OVERWRITE);

	CHECK_EQ(write_each(buf, "abcd", 7), 0);
	CHECK_EQ(write_letters(buf, 'e', 7), -ENOSPC);
	CHECK_EQ(relay_consume_to(buf, 15), 0);
	CHECK_STATS(buf, (unread_bytes, 13), (read_records, 2));
	CHECK_EQ(relay_consume_to(buf, 3), 0);
	CHECK_EQ(stats_of(buf).unread_bytes, 13);
	CHECK_EQ(write_letters(buf, 'e', 7), 0);
	CHECK_EQ(strcmp(look(buf, 0, 100), "ccccccdddddddeeeeeee"), 0);
	CHECK_EQ(relay_consume_to(buf, 1000), 0);
	CHECK_EQ(stats_of(buf).read_records, 5);
	CHECK_DRAINS(buf, "");
}

TEST(looking_ahead_counts_from_what_is_left_of_overwritten_data)
{
	AUTOPTR(rchan_buf) buf = make_buf(10, 2, RELAY_OVERWRITE);

	CHECK_EQ(write_each(buf, "abcd", 10), 0);
	CHECK_EQ(strcmp(look(buf, 0, 100), "ccccccccccdddddddddd"), 0);
	CHECK_EQ(strcmp(look(buf, 5, 7), "cccccdd"), 0);
	CHECK_EQ(looked_to, 32);
}

TEST(subbufs_consumed_does_as_the_kernel)
{
	AUTOPTR(rchan_buf) buf = make_buf(10, 4, RELAY_NO_OVERWRITE);

	CHECK_EQ(write_each(buf, "abc", 9), 0);
	CHECK_EQ(relay_buf_subbufs_consumed(buf, 5), 0);
	CHECK_EQ(stats_of(buf).consumed, 0);
	CHECK_EQ(relay_buf_subbufs_consumed(buf, 1), 0);
	CHECK_EQ(stats_of(buf).consumed, 1);
	CHECK_EQ(relay_buf_subbufs_consumed(buf, 4), 0);
	CHECK_EQ(stats_of(buf).consumed, 2);
	CHECK_DRAINS(buf, "ccccccccc");
}
