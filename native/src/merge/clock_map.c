/* SPDX-License-Identifier: MIT */
#include "merge/clock_map.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool are_in_order(const struct relay_time_knot *knots, uint32_t n)
{
	for (uint32_t i = 1; i < n; i++)
		if (knots[i].time <= knots[i - 1].time || knots[i].mapped < knots[i - 1].mapped)
			return false;
	return n > 0;
}

struct relay_clock_map *relay_clock_map_new(const struct relay_time_knot *knots, uint32_t n, uint64_t first,
                                            uint64_t last)
{
	if (!are_in_order(knots, n)) {
		errno = EINVAL;
		return NULL;
	}
	struct relay_clock_map *map = malloc(sizeof(*map) + n * sizeof(*knots));
	if (!map)
		return NULL;
	*map = (struct relay_clock_map){.first = first, .last = last, .n = n};
	memcpy(map->knots, knots, n * sizeof(*knots));
	return map;
}

const struct relay_time_knot *relay_clock_map_knot(const struct relay_clock_map *map, uint64_t time, uint32_t *near)
{
	uint32_t at = *near;
	/* Of the times of a stream, the next one is behind the same knot or the next one; others are searched for. */
	for (uint32_t tries = 0; tries < 2 && at + 1 < map->n && map->knots[at + 1].time <= time; tries++)
		at++;
	if (map->knots[at].time > time || (at + 1 < map->n && map->knots[at + 1].time <= time)) {
		uint32_t end = map->n;
		at = 0;
		while (end - at > 1) {
			const uint32_t middle = at + (end - at) / 2;
			if (map->knots[middle].time <= time)
				at = middle;
			else
				end = middle;
		}
	}
	*near = at;
	return &map->knots[at];
}

uint64_t relay_clock_map_time(const struct relay_clock_map *map, const struct relay_time_knot *knot, uint64_t time)
{
	const struct relay_time_knot *next = knot + 1;
	if (time < knot->time)
		return knot->mapped - (knot->time - time < knot->mapped ? knot->time - time : knot->mapped);
	const uint64_t since = time - knot->time;
	if (next == map->knots + map->n)
		return knot->mapped + since;
	/* Both clocks go almost equally fast: a double has enough digits for how much more one of them goes. */
	const uint64_t length = next->time - knot->time, mapped_length = next->mapped - knot->mapped;
	const double more = (double)(int64_t)(mapped_length - length) / (double)length;
	const uint64_t mapped = knot->mapped + since + (uint64_t)(int64_t)((double)since * more);
	return mapped < next->mapped ? mapped : next->mapped;
}
