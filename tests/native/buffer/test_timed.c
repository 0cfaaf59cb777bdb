/* SPDX-License-Identifier: MIT */
/* Records with their times: how they are written, and what is read of them, also if somebody has overwritten their heads. */
#define _GNU_SOURCE
#include "half_written.h"
#include "random.h"

#include "base/clock.h"
#include "buffer/follow.h"
#include "buffer/timed.h"

SCHEMES(rseq, lockless, locking);
LIBRARY(static);

enum { SUBBUF = 2048, N_SUBBUFS = 4, HEAD = sizeof(struct relay_timed_head) };

static struct rchan_buf *make_timed(uint32_t mode)
{
	struct relay_spec spec = a_spec(SUBBUF, N_SUBBUFS, mode);

	spec.times = RELAY_MONO;
	return make_buf_of(spec);
}

/* All records, `size` bytes at once. Valid until the next call. */
static const char *read_by(struct rchan_buf *buf, size_t size, size_t most)
{
	static char text[1 << 16];
	size_t n = 0;
	ssize_t got;

	while ((got = relay_buf_read_records(buf, text + n, size, most)) > 0) {
		n += (size_t)got;
		CHECK(n + size < sizeof(text));
	}
	CHECK_EQ(got, 0);
	text[n] = 0;
	return text;
}

TEST(records_are_read_without_their_heads)
{
	AUTOPTR(rchan_buf) buf = make_timed(RELAY_NO_OVERWRITE);
	void *kept, *dropped;
	char data[4];

	CHECK_EQ(write_each(buf, "abc", 3), 0);
	CHECK_EQ(relay_buf_reserve(buf, 2, &kept), 0);
	CHECK_EQ(relay_buf_reserve(buf, 700, &dropped), 0);
	memcpy(kept, "de", 2);
	CHECK_EQ(relay_buf_write(buf, "", 0), 0);
	CHECK_EQ(write_letters(buf, 'f', 1), 0);
	/* Whole records only; behind an open reservation nothing is read. */
	CHECK_EQ(relay_buf_read_records(buf, data, 2, 0), -EMSGSIZE);
	CHECK_TEXT(read_by(buf, 4, 0), "aaabbbccc");
	relay_buf_discard(buf, dropped);
	relay_buf_commit(buf, kept);
	relay_buf_commit(buf, kept); /* it has ended already */
	CHECK_TEXT(read_by(buf, 100, 1), "def");
	CHECK_STATS(buf, (records, 6), (discarded_records, 1), (bytes, 9 + 2 + 700 + 1 + 6 * HEAD), (unread_bytes, 0));
}

/* A process that dies with a reservation. */
static void leave_reservation(const struct rchan_buf *buf)
{
	int status;
	void *to;
	pid_t pid = fork_child();

	if (pid == 0)
		_exit(relay_buf_reserve(open_again(buf), 1, &to));
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
}

/* The letters of the records that are there now, of HEAD + 1 bytes each. */
static const char *followed(struct relay_follow *follow)
{
	static char letters[64];
	struct relay_piece piece;
	char copy[SUBBUF];
	size_t n = 0;
	int result;

	while ((result = relay_follow_copy(follow, &piece, copy, sizeof(copy))) == 1) {
		for (size_t at = HEAD; at < piece.length; at += HEAD + 1)
			letters[n++] = copy[at];
		relay_follow_pass(follow, &piece, piece.length, piece.length / (HEAD + 1));
	}
	CHECK_EQ(result, 0);
	letters[n] = 0;
	return letters;
}

TEST(who_reads_beside_a_consumer_that_passes_a_hole_goes_on_in_the_same_sub_buffer)
{
	AUTOPTR(rchan_buf) buf = make_timed(RELAY_NO_OVERWRITE);
	struct relay_follow ahead, behind, late;

	relay_follow_start(&ahead, buf, true);
	relay_follow_start(&behind, buf, true);
	CHECK_EQ(write_each(buf, "ab", 1), 0);
	CHECK_TEXT(followed(&behind), "ab");
	leave_reservation(buf);
	CHECK_EQ(write_each(buf, "cd", 1), 0);
	CHECK_TEXT(followed(&ahead), "abcd");
	CHECK_TEXT(read_by(buf, 100, 0), "abcd");
	/* The consumer has freed the claim of the hole, so that nobody knows any more where it was. */
	relay_follow_start(&late, buf, false);
	CHECK_EQ(write_each(buf, "ef", 1), 0);
	CHECK_TEXT(followed(&ahead), "ef");
	CHECK_TEXT(followed(&behind), "ef");
	CHECK_TEXT(followed(&late), "ef");
	CHECK_EQ(relay_buf_flush(buf), 0);
	CHECK_EQ(write_each(buf, "g", 1), 0);
	CHECK_TEXT(followed(&ahead), "g");
	CHECK_TEXT(followed(&behind), "g");
	CHECK_TEXT(followed(&late), "g");
	CHECK_EQ(ahead.lost, 1);
	CHECK_EQ(behind.lost, 3);
	CHECK_EQ(late.lost, 5);
}

TEST(times_are_in_the_order_of_positions)
{
	AUTOPTR(rchan_buf) buf = make_timed(RELAY_NO_OVERWRITE);
	struct relay_follow follow;
	struct relay_piece piece;
	unsigned char copy[SUBBUF];
	uint64_t last = relay_clock_ns(CLOCK_MONOTONIC);
	size_t n = 0;
	void *to;

	relay_follow_start(&follow, buf, false);
	CHECK_EQ(relay_buf_reserve(buf, 1, &to), 0);
	CHECK_EQ(write_each(buf, "ab", 600), 0); /* with a claim; and in a further sub-buffer */
	CHECK_EQ(write_each(buf, "cdefg", 300), 0);
	relay_buf_commit(buf, to);
	while (relay_follow_copy(&follow, &piece, copy, sizeof(copy)) == 1) {
		for (size_t at = 0; at < piece.length; n++) {
			struct relay_timed_head head;

			memcpy(&head, copy + at, HEAD);
			CHECK_EQ(head.extended, RELAY_TRACE_EXTENDED);
			uint64_t time = (uint64_t)head.time[1] << 32 | head.time[0];
			CHECK(time >= last && head.id == 0);
			last = time;
			at += HEAD + head.length;
			CHECK(at <= piece.length);
		}
		relay_follow_pass(&follow, &piece, piece.length, 1);
	}
	CHECK_EQ(n, 8);
	CHECK(last <= relay_clock_ns(CLOCK_MONOTONIC));
}

TEST(a_record_that_does_not_fit_is_refused)
{
	AUTOPTR(rchan_buf) buf = make_timed(RELAY_NO_OVERWRITE);
	void *to;

	CHECK_EQ(write_letters(buf, 'a', SUBBUF - HEAD), 0);
	CHECK_EQ(write_letters(buf, 'b', SUBBUF - HEAD + 1), -EMSGSIZE);
	CHECK_EQ(relay_buf_reserve(buf, SUBBUF, &to), -EMSGSIZE);
	CHECK_EQ(relay_buf_write(buf, "c", SIZE_MAX), -EMSGSIZE);
	CHECK_EQ(write_each(buf, "def", SUBBUF - HEAD), 0);
	CHECK_EQ(write_letters(buf, 'g', 1), -ENOSPC);
	CHECK_STATS(buf, (lost_too_large_records, 3), (lost_full_records, 1), (records, 4));
	CHECK_EQ(strlen(read_by(buf, SUBBUF, 0)), 4 * (SUBBUF - HEAD));
}

TEST(what_is_overwritten_is_not_read)
{
	AUTOPTR(rchan_buf) buf = make_timed(RELAY_OVERWRITE);

	for (const char *letter = "abcdefghijkl"; *letter; letter++)
		CHECK_EQ(write_letters(buf, *letter, SUBBUF / 2 - HEAD), 0);
	const char *text = read_by(buf, SUBBUF, 1);
	CHECK_EQ(strlen(text), 8 * (SUBBUF / 2 - HEAD));
	CHECK_EQ(text[0], 'e');
	CHECK_STATS(buf, (lost_overwritten_records, 4));
}

TEST(a_piece_has_the_time_of_its_record)
{
	AUTOPTR(rchan_buf) buf = make_timed(RELAY_NO_OVERWRITE);
	AUTOPTR(rchan_buf) plain = make_buf(SUBBUF, N_SUBBUFS, RELAY_NO_OVERWRITE);
	uint64_t last = relay_clock_ns(CLOCK_MONOTONIC), time;
	struct relay_span piece;

	CHECK_EQ(write_each(buf, "abc", 3), 0);
	for (const char *letter = "abc"; *letter; letter++) {
		CHECK_EQ(relay_consume_piece(buf, &piece, &time), 1);
		CHECK(piece.length == 3 && *(const char *)piece.data == *letter);
		CHECK(time >= last && time <= relay_clock_ns(CLOCK_MONOTONIC));
		last = time;
		relay_consume_end(buf);
	}
	CHECK_EQ(relay_consume_piece(buf, &piece, &time), 0);
	CHECK_EQ(time, 0);
	/* A head that somebody has stored over has no time. */
	CHECK_EQ(write_letters(buf, 'd', 1), 0);
	memset(buf->data + 3 * (HEAD + 3), 0, sizeof(uint16_t));
	CHECK_EQ(relay_consume_piece(buf, &piece, &time), 1);
	CHECK(piece.length == HEAD + 1 && time == 0);
	relay_consume_end(buf);
	CHECK_EQ(write_letters(plain, 'e', 1), 0);
	time = 1;
	CHECK_EQ(relay_consume_piece(plain, &piece, &time), 1);
	CHECK_EQ(time, 0);
	relay_consume_end(plain);
}

/* What a writer stored over them, whose records end where others begin. */
TEST(bytes_without_a_head_are_read_as_they_are)
{
	AUTOPTR(rchan_buf) buf = make_timed(RELAY_NO_OVERWRITE);
	unsigned char *second = buf->data + HEAD + 1;

	CHECK_EQ(write_each(buf, "abc", 1), 0);
	CHECK_EQ(relay_buf_flush(buf), 0);
	CHECK_EQ(write_letters(buf, 'd', 1), 0);
	memset(second + offsetof(struct relay_timed_head, length), 0xff, sizeof(uint32_t));
	char text[200];
	CHECK_EQ(relay_buf_read_records(buf, text, 1, 0), 1);
	CHECK_EQ(relay_buf_read_records(buf, text, 1, 0), -EMSGSIZE);
	CHECK_EQ(relay_buf_read_records(buf, text, sizeof(text), 0), 2 * (HEAD + 1) + 1);
	CHECK_EQ(text[2 * (HEAD + 1)], 'd');
	CHECK_EQ(relay_buf_read_records(buf, text, sizeof(text), 0), 0);
}

TEST(no_head_leads_out_of_the_memory)
{
	AUTOPTR(rchan_buf) buf = make_timed(RELAY_OVERWRITE);
	static char text[SUBBUF * N_SUBBUFS];
	struct relay_span piece;

	for (int round = 0; round < 2000; round++) {
		relay_buf_write(buf, text, random_below(700) + 1);
		uint32_t *word = (uint32_t *)buf->data + random_below(SUBBUF * N_SUBBUFS / 4);
		*word = (uint32_t)(random_below(3) ? random_word() : UINT32_MAX);
		if (round % 3 == 0)
			CHECK(relay_buf_read_records(buf, text, random_below(sizeof(text)), 0) <=
			      (ssize_t)sizeof(text));
		if (round % 5 == 0 && relay_consume_piece(buf, &piece, NULL) == 1) {
			CHECK(piece.length <= SUBBUF);
			memcpy(text, piece.data, piece.length);
			relay_consume_end(buf);
		}
	}
}
