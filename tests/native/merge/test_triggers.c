/* SPDX-License-Identifier: MIT */
/* When triggers fire, by the times of events, and that each event is counted once. */
#define _GNU_SOURCE
#include "packets.h"

#include <errno.h>

LIBRARY(static);

DEFINE_AUTOPTR(relay_triggers, relay_triggers_free)

enum { S = 1000000000 };

/* The times of the firings since the last gather, with the trigger's index, as "0@10 1@30". */
static const char *fired(struct relay_triggers *triggers)
{
	static char text[1 << 16];
	struct relay_firing firing;
	size_t n = 0;

	text[0] = 0;
	while (relay_triggers_next(triggers, &firing)) {
		n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%u@%llu", n ? " " : "", firing.trigger,
		                      (unsigned long long)firing.time);
		CHECK(n < sizeof(text));
	}
	return text;
}

#define CHECK_FIRED(triggers, times) CHECK_EQ(strcmp(fired(triggers), times), 0)

/* A condition that the field n is at least so. */
static struct relay_conditions n_is_at_least(uint64_t number)
{
	struct relay_conditions conditions = {.n_steps = 1, .n_conditions = 1, .texts = "n"};

	conditions.steps[0] = (struct relay_condition_step){.operand = RELAY_OPERAND_POSITIVE,
	                                                    .accepts = RELAY_EQUAL | RELAY_GREATER,
	                                                    .text = 1,
	                                                    .number = number,
	                                                    .next = {RELAY_CONDITION_REFUSE, RELAY_CONDITION_TAKE}};
	return conditions;
}

TEST(a_limit_and_a_condition_decide_by_the_times_of_events)
{
	struct queue a = {.is_ended = true};
	AUTOPTR(relay_merge) merge = merge_of(0, UINT64_MAX);
	const struct relay_conditions conditions = n_is_at_least(2), last = n_is_at_least(4);
	const struct relay_trigger wanted[] = {
	    {.glob = "p:*", .limit = 15}, {.glob = "p:e", .conditions = &conditions}, {.glob = "other:*"},
	    {.glob = "p:e", .since = 40}, {.glob = "p:e", .conditions = &last},
	};
	AUTOPTR(relay_triggers) triggers = relay_triggers_new(merge, wanted, 5);
	struct relay_trigger_state state;

	give(&a, packet_of(0, 0, 5, (uint64_t[]){10, 20, 30, 40, 50}));
	add_queue(merge, 0, 0, &a);
	CHECK_EQ(relay_triggers_gather(triggers), 1);
	CHECK_FIRED(triggers, "0@10 0@30 1@30 1@40 3@40 0@50 1@50 3@50 4@50");
	CHECK_EQ(relay_triggers_state(triggers, 0, &state), 0);
	CHECK_FIELDS(state, (matched, 5), (fired, 3), (limited, 0), (due, 65), (last, 50));
	CHECK_EQ(relay_triggers_state(triggers, 5, &state), -EINVAL);
	CHECK_EQ(relay_triggers_gather(triggers), 1);
	CHECK_FIRED(triggers, "");
}

TEST(conditions_on_several_fields_are_told_apart)
{
	static const struct relay_trace_field fields[] = {{"m", RELAY_TRACE_U32}, {"n", RELAY_TRACE_U32}};
	static const struct relay_trace_event event = {.provider = "p", .name = "e", .fields = fields, .n_fields = 2};
	struct relay_layouts *layouts = relay_layouts_new(0);
	struct relay_merge_process process = a_process(layouts);
	AUTOPTR(relay_merge) merge = relay_merge_new(0, UINT64_MAX);
	struct queue a = {.is_ended = true};
	struct relay_conditions conditions[] = {n_is_at_least(2), n_is_at_least(2), n_is_at_least(1)};
	const struct relay_trigger wanted[] = {
	    {.glob = "p:e", .conditions = &conditions[0]},
	    {.glob = "p:e", .conditions = &conditions[1]},
	    {.glob = "p:e", .conditions = &conditions[2]},
	};
	struct made *made = begin_packet(10, 0);

	conditions[0].texts[0] = 'm';
	CHECK_EQ(relay_layouts_declare(layouts, 0, &event), 0);
	CHECK_EQ(relay_merge_add_process(merge, &process), 0);
	put_event(made, 10, 0, (uint32_t[]){2, 0}, 2 * sizeof(uint32_t));
	put_event(made, 20, 0, (uint32_t[]){1, 2}, 2 * sizeof(uint32_t));
	give(&a, made);
	add_queue(merge, 0, 0, &a);
	AUTOPTR(relay_triggers) triggers = relay_triggers_new(merge, wanted, 3);

	CHECK_EQ(relay_triggers_gather(triggers), 1);
	CHECK_FIRED(triggers, "0@10 1@20 2@20");
}

TEST(new_triggers_go_on_where_others_were)
{
	struct queue a = {.watermark = 25};
	AUTOPTR(relay_merge) merge = merge_of(0, UINT64_MAX);
	struct relay_trigger wanted = {.glob = "p:e", .limit = 100};
	struct relay_triggers *triggers = relay_triggers_new(merge, &wanted, 1);
	struct relay_firing firing;

	give(&a, packet_of(0, 0, 2, (uint64_t[]){10, 20}));
	add_queue(merge, 0, 0, &a);
	CHECK_EQ(relay_triggers_gather(triggers), 1);
	CHECK_FIRED(triggers, "0@10");
	CHECK_EQ(relay_triggers_state(triggers, 0, &wanted.state), 0);
	relay_triggers_free(triggers);
	AUTOPTR(relay_triggers) others = relay_triggers_new(merge, &wanted, 1);

	give(&a, packet_of(0, 2, 2, (uint64_t[]){110, 120}));
	a.watermark = 200;
	CHECK_EQ(relay_triggers_gather(others), 1);
	CHECK_EQ(relay_triggers_next(others, &firing), 1);
	CHECK_FIELDS(firing, (trigger, 0), (number, 2), (time, 110), (limited, 1));
	CHECK(firing.length && memmem(firing.text, firing.length, "app-42 cpu0 p:e: { n = 2 }\n", 27));
	CHECK_EQ(relay_triggers_next(others, &firing), 0);
}

TEST(silence_is_told_once_and_a_rate_once_a_second)
{
	struct queue a = {.watermark = 3 * (uint64_t)S};
	AUTOPTR(relay_merge) merge = merge_of(0, UINT64_MAX);
	const struct relay_trigger wanted[] = {
	    {.kind = RELAY_TRIGGER_QUIET, .glob = "p:e", .quiet = 5},
	    {.kind = RELAY_TRIGGER_RATE, .glob = "p:e", .most = 2},
	};
	AUTOPTR(relay_triggers) triggers = relay_triggers_new(merge, wanted, 2);

	give(&a, packet_of(0, 0, 7, (uint64_t[]){3, 4, 12, 15, S, S + 1, S + 2}));
	add_queue(merge, 0, 0, &a);
	CHECK_EQ(relay_triggers_gather(triggers), 1);
	relay_triggers_reach(triggers, S + 6);
	CHECK_FIRED(triggers, "0@9 1@12 0@20 1@1000000002");
	relay_triggers_reach(triggers, S + 7);
	relay_triggers_reach(triggers, 2 * (uint64_t)S);
	CHECK_FIRED(triggers, "0@1000000007");
}

TEST(losses_and_callers_fire)
{
	struct queue a = {.is_ended = true};
	AUTOPTR(relay_merge) merge = merge_of(0, UINT64_MAX);
	const struct relay_trigger wanted[] = {
	    {.kind = RELAY_TRIGGER_LOST},
	    {.kind = RELAY_TRIGGER_OTHER, .limit = 10},
	};
	AUTOPTR(relay_triggers) triggers = relay_triggers_new(merge, wanted, 2);

	give(&a, packet_of(0, 0, 1, (uint64_t[]){10}));
	give(&a, packet_of(0, 0, 1, (uint64_t[]){50}));
	a.packets[1]->head.events_discarded = 7;
	add_queue(merge, 0, 0, &a);
	CHECK_EQ(relay_triggers_gather(triggers), 1);
	CHECK_EQ(relay_triggers_fire(triggers, 1, 60, NULL), 1);
	CHECK_EQ(relay_triggers_fire(triggers, 1, 69, NULL), 0);
	CHECK_EQ(relay_triggers_fire(triggers, 1, 70, "as told"), 1);
	CHECK_EQ(relay_triggers_fire(triggers, 2, 70, NULL), -EINVAL);
	CHECK_FIRED(triggers, "0@50 1@60 1@70");
}

TEST(more_firings_than_are_kept_at_a_time_are_all_told)
{
	enum { N_PACKETS = 8, N_EVENTS = 500 };
	struct queue a = {.is_ended = true};
	AUTOPTR(relay_merge) merge = merge_of(0, UINT64_MAX);
	const struct relay_trigger wanted = {.glob = "*"};
	AUTOPTR(relay_triggers) triggers = relay_triggers_new(merge, &wanted, 1);
	struct relay_firing firing;
	uint64_t n = 0, times[N_EVENTS];
	int result;

	for (uint64_t packet = 0; packet < N_PACKETS; packet++) {
		for (uint64_t i = 0; i < N_EVENTS; i++)
			times[i] = 1 + packet * N_EVENTS + i;
		give(&a, packet_of(0, 0, N_EVENTS, times));
	}
	add_queue(merge, 0, 0, &a);
	do {
		result = relay_triggers_gather(triggers);
		CHECK(result >= 0);
		while (relay_triggers_next(triggers, &firing)) {
			n++;
			CHECK_FIELDS(firing, (number, n), (time, n));
		}
	} while (!result);
	CHECK_EQ(n, N_PACKETS * N_EVENTS);
}

TEST(wrong_triggers_are_refused)
{
	AUTOPTR(relay_merge) merge = merge_of(0, UINT64_MAX);
	struct relay_conditions conditions = n_is_at_least(0);
	const struct relay_trigger wrong[] = {
	    {.kind = RELAY_TRIGGER_OTHER + 1},
	    {.kind = RELAY_TRIGGER_EVENT},
	    {.kind = RELAY_TRIGGER_LOST, .glob = "*"},
	    {.glob = "*", .conditions = &conditions},
	};
	const struct relay_trigger right[RELAY_TRIGGERS_MAX + 1] = {{.kind = RELAY_TRIGGER_LOST}};

	conditions.n_conditions = 0;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		CHECK(relay_triggers_new(merge, &wrong[i], 1) == NULL && errno == EINVAL);
	CHECK(relay_triggers_new(merge, right, RELAY_TRIGGERS_MAX + 1) == NULL && errno == EINVAL);
}
