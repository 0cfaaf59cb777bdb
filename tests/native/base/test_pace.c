/* SPDX-License-Identifier: MIT */
/* How long readers wait before they look for more. */
#define _GNU_SOURCE
#include "check.h"

#include "base/pace.h"

LIBRARY(static);

/* Find `bytes` at each of n looks. Returns how long the reader has waited before the last one. */
static uint32_t looks(struct relay_look *look, int n, uint64_t bytes)
{
	while (n-- > 0)
		relay_before_look(look, look->at + bytes);
	return look->n_pauses;
}

TEST(a_reader_that_finds_little_waits_longer_each_time_up_to_a_limit)
{
	struct relay_look look = {0};

	CHECK_EQ(looks(&look, 1, 0), 0);
	uint32_t first = looks(&look, 1, 64), second = looks(&look, 1, 64), most = looks(&look, 20, 64);
	CHECK(first > 0 && second > first && most > second);
	CHECK_EQ(looks(&look, 1000, 64), most);
}

TEST(a_reader_that_finds_nothing_does_not_wait)
{
	struct relay_look look = {0};

	CHECK(looks(&look, 20, 64) > 0);
	CHECK_EQ(looks(&look, 1, 0), 0);
}

TEST(a_reader_that_finds_much_soon_does_not_wait)
{
	struct relay_look look = {0};
	uint32_t most = looks(&look, 20, 64);

	CHECK(looks(&look, 1, 1 << 20) < most);
	CHECK_EQ(looks(&look, 10, 1 << 20), 0);
}
