/* SPDX-License-Identifier: MIT */
/* Reading a buffer of packets beside its consumer: all that is committed, whatever that consumer and the writers do meanwhile. */
#define _GNU_SOURCE
#include "half_written.h"
#include "random.h"

#include "buffer/follow.h"

SCHEMES(rseq, lockless);
LIBRARY(static);

enum { SUBBUF = 300, N_SUBBUFS = 4, RECORD = 50, PER_SUBBUF = (SUBBUF - sizeof(struct relay_packet)) / RECORD };

static struct rchan_buf *make_packets(uint32_t mode)
{
	return make_packet_buf(SUBBUF, N_SUBBUFS, mode);
}

static struct relay_follow follow_of(struct rchan_buf *buf, bool is_new)
{
	struct relay_follow follow;

	relay_follow_start(&follow, buf, is_new);
	return follow;
}

/* The letters of the records that are there, `size` bytes at once; a piece that is cut in a record is passed up to it. */
static const char *followed_by(struct relay_follow *follow, size_t size)
{
	static char letters[1 << 12];
	char piece[SUBBUF];
	struct relay_piece at;
	size_t n = 0;
	int result;

	while ((result = relay_follow_copy(follow, &at, piece, size)) == 1) {
		size_t records = at.length / RECORD;

		CHECK(at.length <= size && n + records < sizeof(letters));
		for (size_t i = 0; i < records; i++)
			letters[n++] = piece[i * RECORD];
		CHECK(records > 0 && at.begin > 0);
		relay_follow_pass(follow, &at, records * RECORD, records);
	}
	CHECK_EQ(result, 0);
	letters[n] = 0;
	return letters;
}

static const char *followed(struct relay_follow *follow)
{
	return followed_by(follow, SUBBUF);
}

#define CHECK_FOLLOWED(follow, letters) CHECK_EQ(strcmp(followed(follow), letters), 0)

TEST(records_are_read_before_their_sub_buffer_is_finished)
{
	AUTOPTR(rchan_buf) buf = make_packets(RELAY_NO_OVERWRITE);
	struct relay_follow follow = follow_of(buf, true);

	CHECK_FOLLOWED(&follow, "");
	CHECK_EQ(write_letters(buf, 'a', RECORD), 0);
	CHECK_FOLLOWED(&follow, "a");
	CHECK_FOLLOWED(&follow, "");
	CHECK_EQ(write_each(buf, "bcdefg", RECORD), 0);
	CHECK_FOLLOWED(&follow, "bcdefg");
	/* Nothing was consumed: another one gets all of it, in pieces of any size. */
	struct relay_follow other = follow_of(buf, true);
	CHECK_EQ(strcmp(followed_by(&other, RECORD + RECORD / 2), "abcdefg"), 0);
	CHECK_EQ(follow.lost + other.lost, 0);
	CHECK_STATS(buf, (consumed, 0), (read_records, 0));
}

TEST(what_was_consumed_is_read_as_long_as_it_stands)
{
	AUTOPTR(rchan_buf) buf = make_packets(RELAY_NO_OVERWRITE);
	struct relay_follow follow = follow_of(buf, false);

	CHECK_EQ(write_each(buf, "abcdefghi", RECORD), 0);
	CHECK_EQ(relay_buf_subbufs_consumed(buf, 2), 0);
	CHECK_FOLLOWED(&follow, "abcdefghi");
	CHECK_EQ(follow.lost, 0);
}

TEST(what_is_overwritten_unread_is_lost)
{
	AUTOPTR(rchan_buf) buf = make_packets(RELAY_OVERWRITE);
	struct relay_follow follow = follow_of(buf, true), late;

	CHECK_EQ(write_each(buf, "ab", RECORD), 0);
	CHECK_FOLLOWED(&follow, "ab");
	for (int i = 0; i < 3 * N_SUBBUFS * PER_SUBBUF; i++)
		CHECK_EQ(write_letters(buf, 'x', RECORD), 0);
	size_t n = strlen(followed(&follow));
	CHECK(n > 0 && n <= N_SUBBUFS * PER_SUBBUF);
	CHECK_EQ(follow.lost + n, 3 * N_SUBBUFS * PER_SUBBUF);
	/* Whoever comes later asks for what there is. */
	late = follow_of(buf, false);
	CHECK_EQ(strlen(followed(&late)), n);
	CHECK_EQ(late.lost, 0);
}

TEST(what_is_refused_is_lost_until_there_is_room)
{
	AUTOPTR(rchan_buf) buf = make_packets(RELAY_NO_OVERWRITE);
	struct relay_follow follow = follow_of(buf, true);
	size_t n = N_SUBBUFS * PER_SUBBUF;

	for (size_t i = 0; i < n; i++)
		CHECK_EQ(write_letters(buf, 'x', RECORD), 0);
	for (int i = 0; i < 5; i++)
		CHECK_EQ(write_letters(buf, 'y', RECORD), -ENOSPC);
	CHECK_EQ(strlen(followed(&follow)), n);
	CHECK_EQ(follow.lost, 5);
	CHECK_EQ(relay_follow_consume(&follow, false), 0);
	CHECK_EQ(write_each(buf, "abc", RECORD), 0);
	CHECK_FOLLOWED(&follow, "abc");
	CHECK_EQ(follow.lost, 5);
}

TEST(only_what_was_passed_is_consumed)
{
	AUTOPTR(rchan_buf) buf = make_packets(RELAY_NO_OVERWRITE);
	struct relay_follow follow = follow_of(buf, true);

	CHECK_EQ(write_each(buf, "abcde", RECORD), 0);
	CHECK_FOLLOWED(&follow, "abcde");
	CHECK_EQ(relay_follow_consume(&follow, false), 0);
	CHECK_STATS(buf, (consumed, 0));
	CHECK_EQ(write_each(buf, "fghijkl", RECORD), 0);
	CHECK_EQ(relay_follow_consume(&follow, true), 0);
	CHECK_STATS(buf, (consumed, 1));
	CHECK_FOLLOWED(&follow, "fghijkl");
	CHECK_EQ(relay_follow_consume(&follow, true), 0);
	CHECK_STATS(buf, (consumed, 2));
}

TEST(a_record_that_is_being_written_hides_those_behind_it)
{
	AUTOPTR(rchan_buf) buf = make_packets(RELAY_NO_OVERWRITE);
	struct relay_follow follow = follow_of(buf, true);

	CHECK_EQ(write_letters(buf, 'a', RECORD), 0);
	struct writer writer = start_claimed(buf, 'b', RECORD);
	CHECK_EQ(write_letters(buf, 'c', RECORD), 0);
	CHECK_FOLLOWED(&follow, "a");
	continue_writer(&writer);
	CHECK_FOLLOWED(&follow, "bc");
}

TEST(a_torn_record_is_passed_and_lost)
{
	AUTOPTR(rchan_buf) buf = make_packets(RELAY_NO_OVERWRITE);
	struct relay_follow follow = follow_of(buf, true), late = follow_of(buf, false);

	CHECK_EQ(write_letters(buf, 'a', RECORD), 0);
	leave_hole(buf, RECORD);
	CHECK_EQ(write_each(buf, "cdefg", RECORD), 0);
	CHECK_FOLLOWED(&follow, "acdefg");
	CHECK_EQ(follow.lost, 1);
	/* The consumer frees the claim that told of the hole, so what it has passed is not read any more. */
	CHECK_EQ(relay_buf_subbufs_consumed(buf, 1), 0);
	CHECK_FOLLOWED(&late, "efg");
	/* A hole of before does not matter to what is read before the consumer comes. */
	CHECK_EQ(write_each(buf, "hij", RECORD), 0);
	CHECK_FOLLOWED(&follow, "hij");
	CHECK_EQ(relay_buf_subbufs_consumed(buf, 1), 0);
	CHECK_EQ(write_letters(buf, 'k', RECORD), 0);
	CHECK_FOLLOWED(&follow, "k");
	CHECK_EQ(follow.lost, 1);
}

TEST(behind_a_hole_there_is_more)
{
	const uint32_t modes[] = {RELAY_NO_OVERWRITE, RELAY_OVERWRITE};

	for (int i = 0; i < 2; i++) {
		AUTOPTR(rchan_buf) buf = make_packet_buf(1 << 16, N_SUBBUFS, modes[i]);
		struct relay_follow follow = follow_of(buf, true);
		struct relay_piece piece;
		static char data[1 << 13];

		CHECK_EQ(write_letters(buf, 'a', RECORD), 0);
		leave_hole(buf, RECORD);
		/* For a part of it there is room; in overwrite mode such a part is not read together with what is before it. */
		CHECK_EQ(write_letters(buf, 'c', sizeof(data)), 0);
		CHECK_EQ(relay_follow_copy(&follow, &piece, data, sizeof(data)), 1);
		CHECK(piece.length == RECORD && data[0] == 'a' && piece.has_more);
		relay_follow_pass(&follow, &piece, RECORD, 1);
		CHECK_EQ(relay_follow_copy(&follow, &piece, data, sizeof(data)), 1);
		CHECK(piece.length == sizeof(data) && data[0] == 'c');
	}
}

TEST(a_sub_buffer_can_be_left)
{
	AUTOPTR(rchan_buf) buf = make_packets(RELAY_NO_OVERWRITE);
	struct relay_follow follow = follow_of(buf, true);
	struct relay_piece piece;
	char data[SUBBUF];

	CHECK_EQ(write_each(buf, "ab", RECORD), 0);
	CHECK_EQ(relay_follow_copy(&follow, &piece, data, sizeof(data)), 1);
	relay_follow_pass(&follow, &piece, RECORD, 1);
	relay_follow_leave(&follow, &piece);
	CHECK_FOLLOWED(&follow, "");
	CHECK_EQ(write_each(buf, "cdef", RECORD), 0);
	CHECK_FOLLOWED(&follow, "ef");
	CHECK_EQ(follow.lost, 3);
}

TEST(a_buffer_that_is_reset_is_read_from_its_beginning)
{
	AUTOPTR(rchan_buf) buf = make_packets(RELAY_NO_OVERWRITE);
	struct relay_follow follow = follow_of(buf, true);

	CHECK_EQ(write_each(buf, "abcdef", RECORD), 0);
	CHECK_FOLLOWED(&follow, "abcdef");
	CHECK_EQ(relay_buf_reset(buf), 0);
	CHECK_EQ(write_each(buf, "gh", RECORD), 0);
	CHECK_FOLLOWED(&follow, "gh");
}

TEST(nothing_is_read_while_a_buffer_is_reset)
{
	AUTOPTR(rchan_buf) buf = make_packets(RELAY_NO_OVERWRITE);
	struct relay_follow follow = follow_of(buf, true);
	struct relay_piece piece;
	char data[SUBBUF];

	for (int i = 0; i < 2 * N_SUBBUFS * PER_SUBBUF + 1; i++) {
		CHECK_EQ(write_letters(buf, 'x', RECORD), 0);
		CHECK_FOLLOWED(&follow, "x");
		CHECK_EQ(relay_follow_consume(&follow, true), 0);
	}
	/* As start_again() in buffer/control.c before it clears anything. */
	buf->control->resets |= 1;
	for (int i = 0; i < 10; i++)
		CHECK(relay_follow_copy(&follow, &piece, data, sizeof(data)) <= 0);
	CHECK_EQ(relay_buf_reset(buf), 0);
	CHECK_FOLLOWED(&follow, "");
	CHECK_EQ(write_each(buf, "gh", RECORD), 0);
	CHECK_FOLLOWED(&follow, "gh");
}

TEST(any_memory_does_no_harm)
{
	AUTOPTR(rchan_buf) buf = make_packets(RELAY_OVERWRITE);
	size_t bytes = stats_of(buf).file_bytes, n_words = bytes / sizeof(uint64_t);
	uint64_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, relay_buf_fd(buf), 0);
	uint64_t *saved = malloc(bytes);
	char data[SUBBUF];

	for (int i = 0; i < 2 * N_SUBBUFS * PER_SUBBUF; i++)
		CHECK_EQ(write_letters(buf, 'x', RECORD), 0);
	memcpy(saved, memory, bytes);
	for (int round = 0; round < 20000; round++) {
		struct relay_follow follow = follow_of(buf, round % 2);
		struct relay_piece piece;

		memcpy(memory, saved, bytes);
		for (int i = 0; i < 20; i++) {
			uint64_t word = random_word() % n_words;

			/* Half of them in the control page. */
			word = i % 2 ? n_words - RELAY_PAGE_BYTES / sizeof(uint64_t) + word % 64 : word;
			memory[word] ^= i % 3 ? 1ull << random_word() % 64 : random_word();
			int result = relay_follow_copy(&follow, &piece, data, sizeof(data));
			CHECK(result == 0 || result == 1 || result == -EAGAIN || result == -EBADMSG);
			if (result != 1)
				continue;
			CHECK(piece.length > 0 && piece.length <= sizeof(data));
			if (i % 5)
				relay_follow_pass(&follow, &piece, random_word() % (piece.length + 1), 3);
			else
				relay_follow_leave(&follow, &piece);
		}
		relay_follow_consume(&follow, round % 3);
	}
	CHECK_EQ(munmap(memory, bytes), 0);
	free(saved);
}
