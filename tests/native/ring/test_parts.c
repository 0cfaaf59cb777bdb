/* SPDX-License-Identifier: MIT */
/* Copying a record in parts, and consuming it then. */
#define _GNU_SOURCE
#include "ring_check.h"

#include <errno.h>

SCHEMES(rseq, lockless);

enum { SIZE = PAGE, RECORD = 1000, PART = 300 };

/* Begin with the next record; return its parts, of which the first is copied. */
static struct relay_ring_parts first_of(struct relay_ring *ring, char *copy)
{
	struct relay_ring_parts parts;

	CHECK(relay_ring_parts_begin(ring, &parts) >= RECORD);
	CHECK_EQ(relay_ring_parts_copy(ring, &parts, copy, PART), PART);
	return parts;
}

static bool has_only(const char *copy, char letter, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (copy[i] != letter)
			return false;
	return true;
}

TEST(a_record_is_copied_in_parts_and_consumed_in_the_end)
{
	for (uint32_t mode = RELAY_NO_OVERWRITE; mode <= RELAY_OVERWRITE; mode++) {
		for (uint32_t times = RELAY_NO_TIMESTAMP; times <= RELAY_MONO;
		     times += RELAY_MONO - RELAY_NO_TIMESTAMP) {
			AUTOPTR(relay_ring) ring = make_framed_ring(SIZE, mode, times, RELAY_FRAMING_LENGTH);
			char copy[SIZE];
			uint32_t length;

			CHECK_EQ(output_letters(ring, 'a', RECORD, 0), 0);
			CHECK_EQ(output_letters(ring, 'b', RECORD, 0), 0);
			struct relay_ring_parts parts = first_of(ring, copy);
			while (relay_ring_parts_copy(ring, &parts, copy, PART) > 0)
				CHECK_EQ(ring_stats(ring).read_records, 0);
			CHECK_EQ(relay_ring_parts_consume(ring, &parts, copy), RECORD + sizeof(length));
			memcpy(&length, copy, sizeof(length));
			CHECK_EQ(length, RECORD);
			CHECK(has_only(copy + sizeof(length), 'a', RECORD));
			CHECK_EQ(ring_stats(ring).read_records, 1);
			CHECK_EQ(relay_ring_parts_consume(ring, &parts, copy), -ESTALE);
			CHECK_EQ(ring_stats(ring).read_records, 1);
			parts = first_of(ring, copy);
			CHECK_EQ(copy[sizeof(length)], 'b');
		}
	}
}

TEST(a_record_that_another_reader_consumes_meanwhile_is_begun_anew)
{
	AUTOPTR(relay_ring) ring = make_framed_ring(SIZE, RELAY_NO_OVERWRITE, RELAY_NO_TIMESTAMP, RELAY_FRAMING_RAW);
	char copy[SIZE], other[SIZE];

	CHECK_EQ(output_letters(ring, 'a', RECORD, 0), 0);
	CHECK_EQ(output_letters(ring, 'b', RECORD, 0), 0);
	struct relay_ring_parts parts = first_of(ring, copy), same = parts;
	CHECK_EQ(relay_ring_read_framed(ring, other, sizeof(other), 1), RECORD);
	CHECK_EQ(relay_ring_parts_copy(ring, &parts, copy, PART), -ESTALE);
	CHECK_EQ(relay_ring_parts_consume(ring, &same, copy), -ESTALE);
	CHECK_EQ(ring_stats(ring).read_records, 1);
	CHECK_EQ(relay_ring_read_framed(ring, other, sizeof(other), 1), RECORD);
	CHECK_EQ(relay_ring_parts_consume(ring, &same, copy), -ESTALE);
	CHECK_EQ(relay_ring_parts_begin(ring, &parts), -EAGAIN);
}

TEST(a_record_that_is_overwritten_meanwhile_is_begun_anew_and_counted)
{
	AUTOPTR(relay_ring) ring = make_framed_ring(SIZE, RELAY_OVERWRITE, RELAY_NO_TIMESTAMP, RELAY_FRAMING_RAW);
	char copy[SIZE];

	CHECK_EQ(output_letters(ring, 'a', RECORD, 0), 0);
	struct relay_ring_parts parts = first_of(ring, copy), same = parts;
	for (char letter = 'b'; letter <= 'e'; letter++)
		CHECK_EQ(output_letters(ring, letter, RECORD, 0), 0);
	CHECK_EQ(relay_ring_parts_copy(ring, &parts, copy, PART), -ESTALE);
	CHECK_EQ(relay_ring_parts_consume(ring, &same, copy), -ESTALE);
	CHECK_EQ(ring_stats(ring).lost_overwritten_records, 1);
	parts = first_of(ring, copy);
	CHECK_EQ(copy[0], 'b');
}
