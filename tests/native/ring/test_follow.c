/* SPDX-License-Identifier: MIT */
/* Reading a ring with times beside its consumer. */
#define _GNU_SOURCE
#include "random.h"
#include "ring_check.h"

#include "base/clock.h"
#include "ring/follow.h"

SCHEMES(rseq, lockless);
LIBRARY(static);

enum { SIZE = PAGE, RECORD = 100 };

static struct relay_ring *make_timed(uint32_t mode)
{
	struct relay_ring_spec spec = a_ring_spec(SIZE, mode);

	spec.times = RELAY_MONO;
	return open_ring(make_ring_file_as(&spec));
}

static struct relay_ring_follow follow_of(struct relay_ring *ring)
{
	struct relay_ring_follow follow;

	CHECK_EQ(relay_ring_follow_start(&follow, ring), 0);
	return follow;
}

/* The letters of the records that are there, whose times have to be in order. */
static const char *followed(struct relay_ring_follow *follow)
{
	static char letters[1 << 12];
	static uint64_t last;
	struct relay_ring_copy record;
	uint32_t work = RELAY_RING_WORK;
	char copy[SIZE];
	size_t n = 0;
	int result;

	last = 0;
	while ((result = relay_ring_follow_copy(follow, &record, copy, sizeof(copy), &work)) == 1) {
		CHECK(record.time >= last && record.time <= relay_clock_ns(CLOCK_MONOTONIC));
		last = record.time;
		for (size_t i = 1; i < record.length; i++)
			CHECK_EQ(copy[i], copy[0]);
		CHECK(n < sizeof(letters) - 1);
		letters[n++] = record.length ? copy[0] : '.';
		relay_ring_follow_pass(follow, &record);
	}
	CHECK_EQ(result, 0);
	letters[n] = 0;
	return letters;
}

#define CHECK_FOLLOWED(follow, letters) CHECK_TEXT(followed(follow), letters)

TEST(records_have_times_and_are_consumed_without_them)
{
	AUTOPTR(relay_ring) ring = make_timed(RELAY_NO_OVERWRITE);
	struct relay_ring_follow follow = follow_of(ring);
	const void *data;
	size_t length;

	CHECK_EQ(output_letters(ring, 'a', 0, 0), 0);
	CHECK_EQ(output_letters(ring, 'b', RECORD, 0), 0);
	char *kept = reserve_letters(ring, 'c', 3), *dropped = reserve_letters(ring, 'd', 5);
	CHECK_EQ(output_letters(ring, 'e', 1, 0), 0);
	CHECK_FOLLOWED(&follow, ".b");
	CHECK_EQ(relay_ring_discard(dropped, 0), 0);
	CHECK_EQ(relay_ring_commit(kept, 0), 0);
	CHECK_EQ(relay_ring_commit(kept, 0), -EINVAL);
	CHECK_FOLLOWED(&follow, "ce");
	CHECK_EQ(relay_ring_next(ring, &data, &length), 1);
	CHECK_EQ(length, 0);
	relay_ring_release(ring);
	char text[RECORD];
	uint64_t missed;
	CHECK_EQ(relay_ring_read(ring, text, RECORD - 1, &missed), -EMSGSIZE);
	CHECK_EQ(relay_ring_read(ring, text, RECORD, &missed), RECORD);
	CHECK_LETTERS(ring, "ce");
	CHECK_EQ(relay_ring_follow_lost(&follow), 0);
	CHECK_EQ(output_letters(ring, 'x', SIZE - 24, 0), 0);
	CHECK_EQ(output_letters(ring, 'y', SIZE - 23, 0), -EAGAIN);
	CHECK_FIELDS(ring_stats(ring), (lost_too_large_records, 1));
}

TEST(a_consumer_is_told_the_time_of_each_record)
{
	AUTOPTR(relay_ring) ring = make_timed(RELAY_NO_OVERWRITE);
	AUTOPTR(relay_ring) overwritten = make_timed(RELAY_OVERWRITE);
	uint64_t last = relay_clock_ns(CLOCK_MONOTONIC), first;
	const void *data;
	size_t length;
	char text[RECORD];

	CHECK_EQ(relay_ring_time(ring), 0);
	CHECK_EQ(output_letters(ring, 'a', 3, 0), 0);
	CHECK_EQ(output_letters(ring, 'b', 3, 0), 0);
	CHECK_EQ(relay_ring_next(ring, &data, &length), 1);
	first = relay_ring_time(ring);
	CHECK(first >= last);
	relay_ring_abort(ring);
	CHECK_EQ(relay_ring_read(ring, text, RECORD, NULL), 3);
	CHECK_EQ(relay_ring_time(ring), first);
	CHECK_EQ(relay_ring_next(ring, &data, &length), 1);
	CHECK(relay_ring_time(ring) > first && relay_ring_time(ring) <= relay_clock_ns(CLOCK_MONOTONIC));
	relay_ring_release(ring);
	CHECK_EQ(output_letters(overwritten, 'c', 3, 0), 0);
	CHECK_EQ(relay_ring_read(overwritten, text, RECORD, NULL), 3);
	CHECK(relay_ring_time(overwritten) > first);
}

TEST(what_was_consumed_is_read_as_long_as_it_stands)
{
	AUTOPTR(relay_ring) ring = make_timed(RELAY_NO_OVERWRITE);
	struct relay_ring_follow follow = follow_of(ring);

	for (const char *letter = "abcdefgh"; *letter; letter++)
		CHECK_EQ(output_letters(ring, *letter, RECORD, 0), 0);
	CHECK_LETTERS(ring, "abcdefgh");
	CHECK_FOLLOWED(&follow, "abcdefgh");
	/* Now what was consumed is overwritten before it is read. */
	for (int i = 0; i < 100; i++) {
		CHECK_EQ(output_letters(ring, 'i', RECORD, 0), 0);
		if (i < 95)
			CHECK_LETTERS(ring, "i");
	}
	CHECK_FOLLOWED(&follow, "iiiii");
	CHECK_EQ(relay_ring_follow_lost(&follow), 95);
}

TEST(what_is_overwritten_or_refused_is_counted)
{
	AUTOPTR(relay_ring) ring = make_timed(RELAY_OVERWRITE);
	AUTOPTR(relay_ring) full = make_timed(RELAY_NO_OVERWRITE);
	struct relay_ring_follow follow = follow_of(ring), other = follow_of(full);
	size_t n = 0, refused = 0;

	for (int i = 0; i < 100; i++) {
		CHECK_EQ(output_letters(ring, 'a', RECORD, 0), 0);
		refused += output_letters(full, 'a', RECORD, 0) == -EAGAIN;
	}
	n = strlen(followed(&follow));
	CHECK(n > 20 && n < 40);
	CHECK_EQ(n + relay_ring_follow_lost(&follow), 100);
	CHECK_EQ(strlen(followed(&other)) + refused, 100);
	CHECK_EQ(relay_ring_follow_lost(&other), refused);
}

TEST(a_producer_position_that_cannot_be_is_damage)
{
	AUTOPTR(relay_ring) ring = make_timed(RELAY_NO_OVERWRITE);
	struct relay_ring_follow follow = follow_of(ring);
	struct relay_ring_copy record;
	char copy[RECORD];
	uint64_t *reserved = (uint64_t *)((char *)ring->mapping.base + PAGE), was;

	CHECK_EQ(output_letters(ring, 'a', RECORD, 0), 0);
	CHECK_FOLLOWED(&follow, "a");
	was = *reserved;
	/* Who waits for such a position to change is kept waiting by whoever has stored it. */
	for (int i = 0; i < 3; i++) {
		uint32_t work = RELAY_RING_WORK;
		*reserved = i == 0 ? 0 : i == 1 ? was + 2 * SIZE : ~0ull;
		CHECK_EQ(relay_ring_follow_copy(&follow, &record, copy, sizeof(copy), &work), -EBADMSG);
		CHECK(*relay_ring_damage(ring));
	}
	*reserved = was;
	CHECK_EQ(output_letters(ring, 'b', RECORD, 0), 0);
	CHECK_FOLLOWED(&follow, "b");
}

TEST(no_word_leads_out_of_the_memory_or_into_a_loop)
{
	for (uint32_t mode = RELAY_NO_OVERWRITE; mode <= RELAY_OVERWRITE; mode++) {
		AUTOPTR(relay_ring) ring = make_timed(mode);
		struct relay_ring_follow follow = follow_of(ring);
		char copy[SIZE];

		for (int round = 0; round < 2000; round++) {
			struct relay_ring_copy record;
			uint32_t work = RELAY_RING_WORK;
			relay_ring_output(ring, copy, random_below(300), 0);
			/* Mostly in the data, sometimes in the positions before them. */
			uint64_t at = random_below(SIZE / 4) + (round % 10 ? RELAY_RING_DATA_AT / 4 : 0);
			((uint32_t *)ring->mapping.base)[at] = (uint32_t)random_word() >> random_below(32);
			int result = relay_ring_follow_copy(&follow, &record, copy, sizeof(copy), &work);
			CHECK(result == 1 || result == 0 || result == -EAGAIN || result == -EBADMSG);
			if (result == 1)
				relay_ring_follow_pass(&follow, &record);
		}
	}
}
