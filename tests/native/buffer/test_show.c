/* SPDX-License-Identifier: MIT */
/* What a listing shows of a buffer: of one that is not mapped, and that was empty when it was shown before, too. */
#define _GNU_SOURCE
#include "check.h"

SCHEMES(rseq, lockless, locking);

/* Show a file of which an earlier call has stored *empty, and check what it shows. */
static void check_shown(const char *mem_file, struct relay_empty *empty, uint64_t unread, uint64_t written)
{
	struct relay_shown shown;

	CHECK_EQ(relay_buf_show(NULL, mem_file, &shown, empty), 0);
	CHECK_EQ(shown.unread, unread);
	CHECK_EQ(shown.written, written);
}

TEST(a_buffer_that_was_empty_shows_what_is_written_then)
{
	struct relay_spec spec = a_spec(64, 4, RELAY_NO_OVERWRITE);
	const char *mem_file = make_channel(&spec);
	AUTOPTR(rchan_buf) buf = relay_buf_open(mem_file);
	struct relay_empty empty = {0};

	for (uint64_t n = 0; n < 20; n++) {
		check_shown(mem_file, &empty, 0, 10 * n);
		CHECK_EQ(empty.is_known, 1);
		check_shown(mem_file, &empty, 0, 10 * n);
		CHECK_EQ(write_letters(buf, 'a', 10), 0);
		check_shown(mem_file, &empty, 10, 10 * n + 10);
		CHECK_EQ(empty.is_known, 0);
		CHECK_DRAINS(buf, "aaaaaaaaaa");
	}
}

TEST(a_buffer_that_was_empty_shows_what_is_written_after_a_reset)
{
	struct relay_spec spec = a_spec(64, 4, RELAY_NO_OVERWRITE);
	const char *mem_file = make_channel(&spec);
	AUTOPTR(rchan_buf) buf = relay_buf_open(mem_file);
	struct relay_empty empty = {0};

	CHECK_EQ(write_letters(buf, 'a', 10), 0);
	CHECK_DRAINS(buf, "aaaaaaaaaa");
	check_shown(mem_file, &empty, 0, 10);
	CHECK_EQ(relay_buf_reset(buf), 0);
	CHECK_EQ(write_letters(buf, 'a', 10), 0);
	/* As many bytes are written as when it was empty. */
	check_shown(mem_file, &empty, 10, 10);
}

TEST(a_buffer_that_is_mapped_is_shown_as_one_that_is_not)
{
	AUTOPTR(rchan_buf) buf = make_buf(64, 4, RELAY_OVERWRITE);
	struct relay_empty empty = {0};
	struct relay_shown shown;

	CHECK_EQ(relay_buf_show(buf, "", &shown, &empty), 0);
	CHECK_EQ(empty.is_known, 1);
	CHECK_EQ(write_letters(buf, 'a', 10), 0);
	CHECK_EQ(relay_buf_show(buf, "", &shown, &empty), 0);
	CHECK_EQ(shown.unread, 10);
	CHECK_EQ(empty.is_known, 0);
}

TEST(a_file_that_is_no_buffer_any_more_is_not_shown_as_empty)
{
	struct relay_spec spec = a_spec(64, 4, RELAY_NO_OVERWRITE);
	const char *mem_file = make_channel(&spec);
	struct relay_empty empty = {0};
	struct relay_shown shown;

	check_shown(mem_file, &empty, 0, 0);
	CHECK_EQ(truncate(mem_file, 4096), 0);
	CHECK_EQ(relay_buf_show(NULL, mem_file, &shown, &empty), -EBADMSG);
	CHECK_EQ(truncate(mem_file, 0), 0);
	CHECK_EQ(relay_buf_show(NULL, mem_file, &shown, &empty), -EBADMSG);
	CHECK_EQ(unlink(mem_file), 0);
	CHECK_EQ(relay_buf_show(NULL, mem_file, &shown, &empty), -ENOENT);
}
