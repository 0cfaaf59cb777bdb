/* SPDX-License-Identifier: MIT */
/* Losses have the causes of the intervals that overlap them, wherever their packets are. */
#define _GNU_SOURCE
#include "packets.h"

#include <errno.h>

LIBRARY(static);

/* The losses that a merge gives out from now on, as text: time, number and cause. */
static const char *lost(struct relay_merge *merge)
{
	static char text[4096];
	size_t used = 0;
	const struct relay_event *event;

	text[0] = 0;
	while ((event = relay_merge_next(merge))) {
		const char *cause = relay_loss_cause_name(event->cause);

		if (event->lost)
			used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%llu:%llu %s", used ? ", " : "",
			                         (unsigned long long)event->time, (unsigned long long)event->lost,
			                         cause ? cause : "?");
	}
	return text;
}

TEST(causes_are_those_of_the_intervals_that_overlap_a_loss)
{
	const uint64_t second = 1000000000;
	struct queue a = {.is_ended = true};
	AUTOPTR(relay_merge) merge = merge_of(0, EVER);
	const struct relay_loss losses[] = {
	    {.since = 0, .until = 100 * second, .records = 6, .cause = RELAY_LOSS_FULL},
	    {.since = 19 * second, .until = 31 * second, .records = 2, .cause = RELAY_LOSS_TOO_LARGE},
	    {.since = 0, .until = 100 * second, .records = 9, .cause = RELAY_LOSS_TORN, .cpu = 1},
	};

	/* A packet tells of losses between the end of the one before and its own end. */
	give(&a, packet_of(0, 0, TIMES(10 * second)));
	give(&a, packet_of(0, 1, TIMES(15 * second, 18 * second)));
	a.packets[1]->head.events_discarded = 3;
	give(&a, packet_of(0, 3, TIMES(20 * second, 30 * second)));
	a.packets[2]->head.events_discarded = 6;
	give(&a, packet_of(0, 5, TIMES(200 * second)));
	a.packets[3]->head.events_discarded = 9;
	CHECK_EQ(relay_merge_explain(merge, 0, losses, 3), 0);
	add_queue(merge, 0, 0, &a);
	CHECK_TEXT(
	    lost(merge),
	    "15000000000:3 full, 20000000000:1 full, 20000000000:2 too_large, 200000000000:2 full, 200000000000:1 ?");
}

TEST(an_empty_packet_tells_of_what_was_lost_later)
{
	struct queue a = {.is_ended = true};
	AUTOPTR(relay_merge) merge = merge_of(0, EVER);
	const uint64_t long_after = 100000000000;
	const struct relay_loss loss = {long_after - 1, long_after, 3, RELAY_LOSS_FULL, 0};

	give(&a, packet_of(0, 0, TIMES(10, 20)));
	give(&a, begin_packet(20, 3));
	CHECK_EQ(relay_merge_explain(merge, 0, &loss, 1), 0);
	add_queue(merge, 0, 0, &a);
	CHECK_TEXT(lost(merge), "20:3 full");
}

TEST(losses_without_packets_are_a_stream)
{
	struct queue a = {.is_ended = true};
	AUTOPTR(relay_merge) merge = merge_of(0, EVER);
	struct relay_merge_stats stats;
	struct relay_loss losses[] = {{5, 15, 3, RELAY_LOSS_NO_BUFFERS, 0}, {10, 30, 4, RELAY_LOSS_NO_BUFFERS, 0}};

	give(&a, packet_of(0, 0, TIMES(10, 20)));
	add_queue(merge, 0, 0, &a);
	CHECK_EQ(relay_merge_add_lost(merge, 0, losses, 2), 0);
	CHECK_TEXT(lost(merge), "15:3 no_buffers, 30:4 no_buffers");
	relay_merge_stats(merge, &stats);
	CHECK(stats.lost == 7 && stats.events == 2 && stats.late == 0);
	losses[0].until = 31;
	CHECK_EQ(relay_merge_add_lost(merge, 0, losses, 2), -EINVAL);
	losses[1].cause = RELAY_N_LOSS_CAUSES;
	CHECK_EQ(relay_merge_add_lost(merge, 0, &losses[1], 1), -EINVAL);
	CHECK_EQ(relay_merge_explain(merge, 0, &losses[1], 1), -EINVAL);
	CHECK_EQ(relay_merge_explain(merge, 9, losses, 1), -EINVAL);
}
