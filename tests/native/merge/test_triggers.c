/* SPDX-License-Identifier: MIT */
/* When triggers fire, by the times of events, and that each event is counted once. */
#define _GNU_SOURCE
#include "packets.h"

#include "merge/output.h"

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

/* The lines are these, after their times, which depend on the time zone. */
static void check_lines(const struct relay_triggers *triggers, const char *expected)
{
	size_t length;
	const char *at = relay_triggers_lines(triggers, &length), *end = at + length;

	while (at < end) {
		const char *line = memmem(at, (size_t)(end - at), "] ", 2), *next;
		CHECK(line && *at == '[');
		line += 2;
		next = (const char *)memchr(line, '\n', (size_t)(end - line)) + 1;
		CHECK(strncmp(line, expected, (size_t)(next - line)) == 0);
		expected += next - line;
		at = next;
	}
	CHECK_EQ(*expected, 0);
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
	struct queue a = {.is_ended = true};
	AUTOPTR(relay_merge) merge = relay_merge_new(0, UINT64_MAX);
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

/* --- comparisons of integers --- */

enum { N_ORDERS = 16 };

/* Of a comparison of the field n with a constant: each set of orders, each with both outcomes. It is compared n_times, which
 * makes no difference. */
static struct relay_conditions comparison(unsigned orders, uint8_t operand, uint64_t constant, uint32_t n_times)
{
	struct relay_conditions conditions = {.n_steps = n_times, .n_conditions = 1, .texts = "n"};

	for (uint32_t i = 0; i < n_times; i++) {
		const uint8_t yes = i + 1 == n_times ? RELAY_CONDITION_TAKE : (uint8_t)(i + 1);
		conditions.steps[i] = (struct relay_condition_step){.operand = operand,
		                                                    .accepts = orders % 8,
		                                                    .text = 1,
		                                                    .number = constant,
		                                                    .next = {RELAY_CONDITION_REFUSE, yes}};
		if (orders / 8) {
			conditions.steps[i].next[0] = yes;
			conditions.steps[i].next[1] = RELAY_CONDITION_REFUSE;
		}
	}
	return conditions;
}

static struct relay_merge *merge_with_field(uint32_t type, struct queue *queue, const uint64_t *values, size_t n,
                                            size_t bytes)
{
	const struct relay_trace_field field = {"n", type};
	const struct relay_trace_event event = {.provider = "p", .name = "e", .fields = &field, .n_fields = 1};
	struct relay_layouts *layouts = relay_layouts_new(0);
	struct relay_merge_process process = a_process(layouts);
	struct relay_merge *merge = relay_merge_new(0, UINT64_MAX);
	struct made *made = begin_packet(1, 0);

	CHECK_EQ(relay_layouts_declare(layouts, 0, &event), 0);
	CHECK_EQ(relay_merge_add_process(merge, &process), 0);
	for (size_t i = 0; i < n; i++)
		put_event(made, 1 + i, 0, &values[i], bytes);
	give(queue, made);
	add_queue(merge, 0, 0, queue);
	return merge;
}

/* A condition of one comparison is evaluated as a range of values; twice the same comparison is not. Of n conditions from `first` on,
 * which have as many sets of orders, each second one is compared with the constant and two more. */
static void check_ranges(uint32_t type, size_t bytes, uint8_t operand, uint64_t constant, unsigned first, unsigned n)
{
	static const uint64_t values[] = {
	    0, 1, 2, 127, 128, 255, 1ull << 31, UINT32_MAX, INT64_MAX, 1ull << 63, UINT64_MAX - 1, UINT64_MAX};
	enum { N = sizeof(values) / sizeof(values[0]) };
	struct queue queue = {.is_ended = true};
	AUTOPTR(relay_merge) merge = merge_with_field(type, &queue, values, N, bytes);
	struct relay_conditions conditions[2 * N_ORDERS];
	struct relay_trigger wanted[2 * N_ORDERS] = {0};
	uint64_t firings[2 * N_ORDERS] = {0};
	struct relay_firing firing;

	for (unsigned i = 0; i < 2 * n; i++) {
		const unsigned orders = (first + i / 2) % N_ORDERS;
		conditions[i] = comparison(orders, operand, constant + i / 2 % 2 * 2, 1 + i % 2);
		wanted[i] = (struct relay_trigger){.glob = "p:e", .conditions = &conditions[i]};
	}
	AUTOPTR(relay_triggers) triggers = relay_triggers_new(merge, wanted, 2 * n);

	CHECK_EQ(relay_triggers_gather(triggers), 1);
	while (relay_triggers_next(triggers, &firing))
		firings[firing.trigger] |= 1ull << firing.time;
	for (unsigned i = 0; i < 2 * n; i += 2)
		CHECK_EQ(firings[i], firings[i + 1]);
	if (first > 0)
		return;
	CHECK_EQ(firings[0], 0);
	if (n == N_ORDERS)
		CHECK_EQ(firings[2 * 7], (1ull << (N + 1)) - 2); /* less, equal and greater */
}

/* All sets of orders at once, and two by two, of which some are far from some values. */
static void check_all_ranges(uint32_t type, size_t bytes, uint8_t operand, uint64_t constant)
{
	check_ranges(type, bytes, operand, constant, 0, N_ORDERS);
	for (unsigned first = 0; first < N_ORDERS; first++)
		check_ranges(type, bytes, operand, constant, first, 2);
}

TEST(a_comparison_of_an_integer_is_true_for_the_same_values_in_each_type)
{
	static const struct {
		uint32_t type;
		size_t bytes;
	} types[] = {{RELAY_TRACE_U8, 1},  {RELAY_TRACE_I8, 1},  {RELAY_TRACE_U32, 4},
	             {RELAY_TRACE_I32, 4}, {RELAY_TRACE_U64, 8}, {RELAY_TRACE_I64, 8}};
	static const uint64_t constants[] = {0, 1, 127, 128, 255, INT64_MAX, 1ull << 63, UINT64_MAX};

	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
		for (size_t k = 0; k < sizeof(constants) / sizeof(constants[0]); k++) {
			check_all_ranges(types[i].type, types[i].bytes, RELAY_OPERAND_POSITIVE, constants[k]);
			check_all_ranges(types[i].type, types[i].bytes, RELAY_OPERAND_NEGATIVE, -constants[k]);
		}
}

/* --- events in a row --- */

enum { N_IN_A_ROW = 2000, N_LIMITED = 4 };

/* What an event of this time and value does to a trigger that waits for at least `least`. */
static void expect(struct relay_trigger *trigger, uint64_t least, uint64_t time, uint64_t value)
{
	struct relay_trigger_state *state = &trigger->state;

	if (value < least || time < trigger->since)
		return;
	state->matched++;
	state->last = time > state->last ? time : state->last;
	if (time < state->due) {
		state->limited++;
		return;
	}
	state->fired++;
	state->limited = 0;
	state->due = time + trigger->limit;
}

TEST(events_at_which_limits_forbid_to_fire_are_counted_each)
{
	static uint64_t values[N_IN_A_ROW];
	struct queue early = {.is_ended = true}, late = {.is_ended = true};
	struct made *made = begin_packet(1, 0);
	struct relay_conditions conditions[N_LIMITED];
	struct relay_trigger wanted[N_LIMITED] = {
	    {.limit = 90}, {.limit = 35}, {.limit = 250, .since = 700}, {.limit = 1}};
	struct relay_trigger_state state;

	/* Rows of 1, 2, 3 ... events with one value. */
	for (uint64_t i = 0, row = 0, end = 0; i < N_IN_A_ROW; i++) {
		end += i == end ? ++row : 0;
		values[i] = row % (N_LIMITED + 1);
	}
	AUTOPTR(relay_merge) merge = merge_with_field(RELAY_TRACE_U64, &early, values, N_IN_A_ROW, sizeof(values[0]));
	for (uint64_t i = 0; i < N_LIMITED; i++) {
		conditions[i] = n_is_at_least(i + 1);
		wanted[i].glob = "p:e";
		wanted[i].conditions = &conditions[i];
	}
	AUTOPTR(relay_triggers) triggers = relay_triggers_new(merge, wanted, N_LIMITED);

	while (!relay_triggers_gather(triggers))
		;
	/* These are older than those before. */
	for (uint64_t i = 0; i < N_IN_A_ROW; i++)
		put_event(made, 1 + i, 0, &values[N_IN_A_ROW - 1 - i], sizeof(values[0]));
	give(&late, made);
	add_queue(merge, 0, 1, &late);
	while (!relay_triggers_gather(triggers))
		;
	for (uint64_t i = 0; i < N_LIMITED; i++) {
		for (uint64_t k = 0; k < N_IN_A_ROW; k++)
			expect(&wanted[i], i + 1, 1 + k, values[k]);
		for (uint64_t k = 0; k < N_IN_A_ROW; k++)
			expect(&wanted[i], i + 1, 1 + k, values[N_IN_A_ROW - 1 - k]);
		CHECK_EQ(relay_triggers_state(triggers, (uint32_t)i, &state), 0);
		CHECK_EQ(memcmp(&state, &wanted[i].state, sizeof(state)), 0);
	}
}

/* --- what they are told --- */

TEST(a_line_that_is_cut_ends_with_a_whole_character)
{
	static const struct relay_trigger wanted = {.name = "long", .glob = "p:e"};
	static uint64_t words[512];
	const size_t length = sizeof(words) - 1, least = 2000, most = 2200;
	char *text = (char *)words;
	size_t n;

	for (size_t n_ascii = 0; n_ascii < 3; n_ascii++) {
		struct queue queue = {.is_ended = true};
		memset(text, 'x', n_ascii);
		for (size_t i = n_ascii; i < length; i++)
			text[i] = "\u20ac"[(i - n_ascii) % 3];
		text[length - (length - n_ascii) % 3] = 0;
		AUTOPTR(relay_merge)
		merge = merge_with_field(RELAY_TRACE_STRING, &queue, words, 1, length - (length - n_ascii) % 3 + 1);
		AUTOPTR(relay_triggers) triggers = relay_triggers_new(merge, &wanted, 1);
		CHECK_EQ(relay_triggers_gather(triggers), 1);
		const char *line = relay_triggers_lines(triggers, &n);
		CHECK(n > least && n < most);
		CHECK(relay_is_utf8(line, n));
	}
}

TEST(new_triggers_go_on_where_others_were)
{
	struct queue a = {.watermark = 25};
	AUTOPTR(relay_merge) merge = merge_of(0, UINT64_MAX);
	struct relay_trigger wanted = {.name = "slow", .glob = "p:e", .limit = 100};
	struct relay_triggers *triggers = relay_triggers_new(merge, &wanted, 1);
	struct relay_firing firing;

	give(&a, packet_of(0, 0, 2, (uint64_t[]){10, 20}));
	add_queue(merge, 0, 0, &a);
	CHECK_EQ(relay_triggers_gather(triggers), 1);
	CHECK_FIRED(triggers, "0@10");
	check_lines(triggers, "slow 1: app-42 cpu0 p:e: { n = 0 }\n");
	CHECK_EQ(relay_triggers_state(triggers, 0, &wanted.state), 0);
	relay_triggers_free(triggers);
	AUTOPTR(relay_triggers) others = relay_triggers_new(merge, &wanted, 1);

	give(&a, packet_of(0, 2, 2, (uint64_t[]){110, 120}));
	a.watermark = 200;
	CHECK_EQ(relay_triggers_gather(others), 1);
	CHECK_EQ(relay_triggers_next(others, &firing), 1);
	CHECK_FIELDS(firing, (trigger, 0), (number, 2), (time, 110));
	CHECK_EQ(relay_triggers_next(others, &firing), 0);
	check_lines(others, "slow 2: app-42 cpu0 p:e: { n = 2 } (1 more since firing 1)\n");
}

TEST(silence_is_told_once_and_a_rate_once_a_second)
{
	struct queue a = {.watermark = 3 * (uint64_t)S};
	AUTOPTR(relay_merge) merge = merge_of(0, UINT64_MAX);
	const struct relay_trigger wanted[] = {
	    {.kind = RELAY_TRIGGER_QUIET, .glob = "p:e", .quiet = 5},
	    {.kind = RELAY_TRIGGER_RATE, .glob = "p:e", .most = 2},
	    {.kind = RELAY_TRIGGER_QUIET, .name = "ms", .is_only_told = 1, .glob = "q:e", .quiet = 1500000000},
	    {.kind = RELAY_TRIGGER_QUIET, .name = "s", .is_only_told = 1, .glob = "q:e", .quiet = 2 * (uint64_t)S},
	};
	AUTOPTR(relay_triggers) triggers = relay_triggers_new(merge, wanted, 4);

	give(&a, packet_of(0, 0, 7, (uint64_t[]){3, 4, 12, 15, S, S + 1, S + 2}));
	add_queue(merge, 0, 0, &a);
	CHECK_EQ(relay_triggers_gather(triggers), 1);
	relay_triggers_reach(triggers, S + 6);
	CHECK_FIRED(triggers, "0@9 1@12 0@20 1@1000000002");
	relay_triggers_reach(triggers, S + 7);
	relay_triggers_forget(triggers);
	relay_triggers_reach(triggers, 2 * (uint64_t)S);
	CHECK_FIRED(triggers, "");
	check_lines(triggers, "ms 1: no event for 1500ms\ns 1: no event for 2s\n");
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

TEST(a_firing_for_which_there_is_no_room_can_be_tried_again)
{
	AUTOPTR(relay_merge) merge = merge_of(0, UINT64_MAX);
	const struct relay_trigger wanted = {.name = "end", .kind = RELAY_TRIGGER_OTHER};
	AUTOPTR(relay_triggers) triggers = relay_triggers_new(merge, &wanted, 1);
	struct relay_trigger_state state;
	uint64_t n = 0;

	while (relay_triggers_fire(triggers, 0, n, "one") == 1)
		n++;
	CHECK(n > 0);
	CHECK_EQ(relay_triggers_fire(triggers, 0, n, "one"), -EAGAIN);
	relay_triggers_forget(triggers);
	CHECK_EQ(relay_triggers_fire(triggers, 0, n, "another"), 1);
	CHECK_EQ(relay_triggers_state(triggers, 0, &state), 0);
	CHECK_FIELDS(state, (fired, n + 1), (limited, 0));
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
