/* SPDX-License-Identifier: MIT */
/* From the times of a process's clock to those of all machines: struct relay_time_knot in <relayfs/merge.h>. */
#ifndef RELAYFS_MERGE_CLOCK_MAP_H
#define RELAYFS_MERGE_CLOCK_MAP_H

#include <relayfs/merge.h>

struct relay_clock_map {
	uint64_t first, last; /* the first and last time, by the process's clock, that belong to it */
	uint32_t n;           /* at least 1 */
	struct relay_time_knot knots[];
};

/* Make a map; the arguments as of relay_merge_map_clock(). NULL and errno: EINVAL, ENOMEM. */
struct relay_clock_map *relay_clock_map_new(const struct relay_time_knot *knots, uint32_t n, uint64_t first,
                                            uint64_t last);

/* Return the last knot at or before `time`; the first one, if all are later. *near is an index to begin at, and is changed to
 * that of this knot: consecutive times of a stream are near to each other. */
const struct relay_time_knot *relay_clock_map_knot(const struct relay_clock_map *map, uint64_t time, uint32_t *near);

/* Return the mapped time of `time`. knot: as relay_clock_map_knot() returns it. Never decreases as `time` increases, if knots are
 * no further apart than 2^53 ns, a hundred days. */
uint64_t relay_clock_map_time(const struct relay_clock_map *map, const struct relay_time_knot *knot, uint64_t time);

#endif
