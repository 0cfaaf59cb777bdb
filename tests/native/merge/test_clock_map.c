/* SPDX-License-Identifier: MIT */
/* Times of a clock are mapped by knots, and never go back. */
#define _GNU_SOURCE
#include "check.h"

#include <errno.h>
#include <merge/clock_map.h>
#include <stdlib.h>

LIBRARY(static);

enum { KNOTS = 1000, TIMES = 200000 };

static uint64_t mapped(const struct relay_clock_map *map, uint64_t time, uint32_t *near)
{
	return relay_clock_map_time(map, relay_clock_map_knot(map, time, near), time);
}

TEST(times_go_evenly_between_knots_and_as_fast_as_the_clock_outside)
{
	const struct relay_time_knot knots[] = {{1000, 5000, 1}, {2000, 6500, 2}, {2001, 9000, 3}};
	struct relay_clock_map *map = relay_clock_map_new(knots, 3, 0, UINT64_MAX);
	uint32_t near = 0;

	CHECK(map != NULL);
	CHECK_EQ(mapped(map, 0, &near), 4000);
	CHECK_EQ(mapped(map, 1000, &near), 5000);
	CHECK_EQ(mapped(map, 1500, &near), 5750);
	CHECK_EQ(mapped(map, 2000, &near), 6500);
	CHECK_EQ(mapped(map, 2001, &near), 9000);
	CHECK_EQ(mapped(map, 2501, &near), 9500);
	CHECK_EQ(relay_clock_map_knot(map, 2500, &near)->error, 3);
	CHECK_EQ(relay_clock_map_knot(map, 999, &near)->error, 1);
	free(map);
}

TEST(knots_that_go_back_are_refused)
{
	const struct relay_time_knot same[] = {{1000, 5000, 1}, {1000, 6000, 2}};
	const struct relay_time_knot back[] = {{1000, 5000, 1}, {2000, 4999, 2}};

	CHECK(relay_clock_map_new(same, 2, 0, UINT64_MAX) == NULL && errno == EINVAL);
	CHECK(relay_clock_map_new(back, 2, 0, UINT64_MAX) == NULL && errno == EINVAL);
	CHECK(relay_clock_map_new(back, 0, 0, UINT64_MAX) == NULL && errno == EINVAL);
}

/* Whatever the rates are, and wherever the search begins. */
TEST(mapped_times_never_go_back)
{
	static struct relay_time_knot knots[KNOTS];
	uint64_t time = 1000000, to = 1764185000000000000, last = 0;
	uint32_t near = 0;

	srandom(1);
	for (size_t i = 0; i < KNOTS; i++) {
		knots[i] = (struct relay_time_knot){time, to, i};
		time += 1 + (uint64_t)random() % (i % 3 ? 3 : 60000000000);
		to += (uint64_t)random() % (i % 5 ? 70000000000 : 2);
	}
	struct relay_clock_map *map = relay_clock_map_new(knots, KNOTS, 0, UINT64_MAX);
	CHECK(map != NULL);
	for (size_t i = 0; i < TIMES; i++) {
		const uint64_t at = (time + 1000) / TIMES * i;
		const uint64_t now = mapped(map, at, &near);
		uint32_t other = (uint32_t)random() % KNOTS;

		CHECK(now >= last);
		CHECK_EQ(mapped(map, at, &other), now);
		last = now;
	}
	free(map);
}
