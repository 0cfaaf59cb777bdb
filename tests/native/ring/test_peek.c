/* SPDX-License-Identifier: MIT */
/* Copying the unread records of a ring beside its consumer, with times and without. */
#define _GNU_SOURCE
#include "random.h"
#include "ring_check.h"

#include <errno.h>

SCHEMES(rseq, lockless);

enum { SIZE = PAGE, RECORD = 100 };

DEFINE_AUTOPTR(relay_ring_peek, relay_ring_peek_close)

static struct relay_ring_peek *peek_of(struct relay_ring *ring)
{
	struct relay_ring_peek *peek = relay_ring_peek_open(ring);

	CHECK(peek != NULL);
	return peek;
}

/* The letters of the lines that it has left. */
static const char *peeked(struct relay_ring_peek *peek, size_t size)
{
	static char letters[1 << 12];
	char copy[SIZE];
	size_t n = 0;
	ssize_t got;

	while ((got = relay_ring_peek_copy(peek, copy, size)) > 0) {
		CHECK((size_t)got <= size && copy[got - 1] == '\n');
		for (const char *at = copy; at < copy + got; at = memchr(at, '\n', SIZE) + 1) {
			CHECK(n < sizeof(letters) - 1);
			letters[n++] = *at;
			for (size_t i = 0; at[i] != '\n'; i++)
				CHECK_EQ(at[i], *at);
		}
	}
	CHECK_EQ(got, 0);
	letters[n] = 0;
	return letters;
}

#define CHECK_PEEKED(peek, letters) CHECK_TEXT(peeked(peek, SIZE), letters)

static void output_each(struct relay_ring *ring, const char *letters)
{
	while (*letters)
		CHECK_EQ(output_letters(ring, *letters++, RECORD, 0), 0);
}

TEST(what_is_unread_is_copied_and_stays)
{
	for (uint32_t times = RELAY_NO_TIMESTAMP; times <= RELAY_MONO; times += RELAY_MONO - RELAY_NO_TIMESTAMP) {
		AUTOPTR(relay_ring) ring = make_framed_ring(SIZE, RELAY_NO_OVERWRITE, times, RELAY_FRAMING_LINE);

		output_each(ring, "abc");
		char *dropped = reserve_letters(ring, '#', 5);
		output_each(ring, "de");
		CHECK_EQ(relay_ring_discard(dropped, 0), 0);
		char *kept = reserve_letters(ring, 'f', 5);
		output_each(ring, "g");
		AUTOPTR(relay_ring_peek) peek = peek_of(ring);
		for (size_t size = 0; size <= RECORD; size += RECORD / 2)
			CHECK_EQ(relay_ring_peek_copy(peek, (char[RECORD]){0}, size), -EMSGSIZE);
		CHECK_TEXT(peeked(peek, RECORD + 1), "abcde");
		CHECK_EQ(relay_ring_commit(kept, 0), 0);
		output_each(ring, "h");
		/* What was reserved when it began, and no more. */
		CHECK_PEEKED(peek, "fg");
		relay_ring_peek_rewind(peek);
		CHECK_PEEKED(peek, "abcdefg");
		relay_ring_peek_more(peek);
		CHECK_PEEKED(peek, "h");
		CHECK_EQ(relay_ring_peek_has_skipped(peek), 0);
		CHECK_EQ(ring_stats(ring).read_records, 0);
	}
}

TEST(each_framing_is_that_of_read)
{
	for (uint32_t framing = RELAY_FRAMING_RAW; framing <= RELAY_FRAMING_LINE; framing++) {
		AUTOPTR(relay_ring) ring = make_framed_ring(SIZE, RELAY_NO_OVERWRITE, RELAY_NO_TIMESTAMP, framing);
		char copied[SIZE], read[SIZE];

		CHECK_EQ(relay_ring_output(ring, "one\n", 4, 0), 0);
		CHECK_EQ(relay_ring_output(ring, "", 0, 0), 0);
		CHECK_EQ(relay_ring_output(ring, "two", 3, 0), 0);
		AUTOPTR(relay_ring_peek) peek = peek_of(ring);
		ssize_t got = relay_ring_peek_copy(peek, copied, SIZE);
		CHECK_EQ(got, relay_ring_read_framed(ring, read, SIZE, 0));
		CHECK_EQ(memcmp(copied, read, (size_t)got), 0);
	}
}

TEST(another_one_goes_on_where_it_was)
{
	AUTOPTR(relay_ring) ring = make_framed_ring(SIZE, RELAY_NO_OVERWRITE, RELAY_MONO, RELAY_FRAMING_LINE);
	char copy[SIZE], saved[1024];

	output_each(ring, "abcd");
	AUTOPTR(relay_ring_peek) peek = peek_of(ring);
	CHECK_EQ(relay_ring_peek_copy(peek, copy, RECORD + 1), RECORD + 1);
	size_t size = relay_ring_peek_save(peek, saved, sizeof(saved));
	CHECK_EQ(relay_ring_read_framed(ring, copy, SIZE, 4), 4 * (RECORD + 1));
	output_each(ring, "ef");
	AUTOPTR(relay_ring_peek) other = peek_of(ring);
	CHECK_EQ(relay_ring_peek_restore(other, saved, size - 1), -EINVAL);
	CHECK_EQ(relay_ring_peek_restore(other, saved, size), 0);
	CHECK_PEEKED(other, "bcd");
	CHECK_EQ(relay_ring_peek_has_skipped(other), 0);
	relay_ring_peek_more(other);
	CHECK_PEEKED(other, "ef");
}

TEST(what_is_consumed_or_overwritten_is_skipped)
{
	AUTOPTR(relay_ring) ring = make_framed_ring(SIZE, RELAY_NO_OVERWRITE, RELAY_NO_TIMESTAMP, RELAY_FRAMING_LINE);
	char copy[SIZE];

	output_each(ring, "abcd");
	AUTOPTR(relay_ring_peek) peek = peek_of(ring);
	CHECK_EQ(relay_ring_peek_copy(peek, copy, RECORD + 1), RECORD + 1);
	CHECK_EQ(relay_ring_read_framed(ring, copy, SIZE, 3), 3 * (RECORD + 1));
	CHECK_PEEKED(peek, "d");
	CHECK_EQ(relay_ring_peek_has_skipped(peek), 1);
	AUTOPTR(relay_ring) over = make_framed_ring(SIZE, RELAY_OVERWRITE, RELAY_NO_TIMESTAMP, RELAY_FRAMING_LINE);
	output_each(over, "abcdefghijklmnopqrstuvwxyz");
	AUTOPTR(relay_ring_peek) late = peek_of(over);
	CHECK_EQ(relay_ring_peek_has_skipped(late), 0);
	output_each(over, "ABCDEFGHIJKLMNOPQRSTUVWXYZ");
	const char *left = peeked(late, SIZE);
	CHECK(strlen(left) < 26);
	CHECK_TEXT(left, &"abcdefghijklmnopqrstuvwxyz"[26 - strlen(left)]);
	CHECK_EQ(relay_ring_peek_has_skipped(late), 1);
}
