/* SPDX-License-Identifier: MIT */
/* A merge with a condition gives out the events that meet it, and all losses. tests/fuse/cli/test_if.py compares what it means with
 * what programs take it for. */
#define _GNU_SOURCE
#include "packets.h"

#include "trace/condition.h"

#include <pthread.h>
#include <sys/mman.h>

LIBRARY(static);

enum { PAGE = 4096, N_ROUNDS = 300000 };

/* A field, whose name begins the texts, is compared with what `step` says; its text, if there is one, follows. */
static struct relay_conditions condition_of(const char *field, const char *text, struct relay_condition_step step)
{
	struct relay_conditions conditions = {.n_steps = 1, .n_conditions = 1};

	step.text = (uint16_t)(strlen(field) + 1);
	strcpy(conditions.texts, field);
	strcpy(conditions.texts + step.text, text);
	step.next[0] = RELAY_CONDITION_REFUSE;
	step.next[1] = RELAY_CONDITION_TAKE;
	conditions.steps[0] = step;
	return conditions;
}

static struct relay_conditions n_is_at_least(uint64_t number)
{
	return condition_of("n", "",
	                    (struct relay_condition_step){.operand = RELAY_OPERAND_POSITIVE,
	                                                  .accepts = RELAY_EQUAL | RELAY_GREATER,
	                                                  .number = number});
}

TEST(losses_are_told_and_events_are_chosen)
{
	struct queue a = {.is_ended = true}, b = a;
	AUTOPTR(relay_merge) merge = relay_merge_new(0, UINT64_MAX);
	const struct relay_conditions conditions = n_is_at_least(2);
	struct relay_merge_process process = a_process(one_u32()), other = a_process(relay_layouts_new(0));
	struct relay_merge_stats stats;
	const struct relay_trace_field fields[] = {{"m", RELAY_TRACE_U32}};
	const struct relay_trace_event event = {.provider = "p", .name = "e", .fields = fields, .n_fields = 1};

	CHECK_EQ(relay_layouts_declare(other.layouts, 0, &event), 0);
	CHECK_EQ(relay_merge_set_condition(merge, &conditions), 0);
	CHECK_EQ(relay_merge_add_process(merge, &process), 0);
	CHECK_EQ(relay_merge_add_process(merge, &other), 1);
	give(&a, packet_of(0, 0, 4, (uint64_t[]){10, 20, 30, 40}));
	give(&a, packet_of(0, 0, 1, (uint64_t[]){50}));
	a.packets[1]->head.events_discarded = 7;
	give(&b, packet_of(0, 2, 2, (uint64_t[]){35, 45}));
	add_queue(merge, 0, 0, &a);
	add_queue(merge, 1, 0, &b); /* its events have no field n */
	CHECK_EQ(relay_merge_next(merge)->time, 30);
	CHECK_EQ(number_of(relay_merge_next(merge)), 3);
	CHECK_EQ(relay_merge_next(merge)->lost, 7);
	CHECK(relay_merge_next(merge) == NULL && relay_merge_is_ended(merge));
	relay_merge_stats(merge, &stats);
	CHECK_FIELDS(stats, (events, 2), (lost, 7), (error, 0));
}

TEST(a_merge_takes_one_sound_condition_and_no_other)
{
	AUTOPTR(relay_merge) merge = relay_merge_new(0, UINT64_MAX);
	struct relay_conditions conditions = n_is_at_least(0);
	struct relay_merge_process process = a_process(one_u32());

	conditions.n_conditions = 0;
	CHECK_EQ(relay_merge_set_condition(merge, &conditions), -EINVAL);
	conditions.n_conditions = 1;
	conditions.steps[0].next[0] = 0;
	CHECK_EQ(relay_merge_set_condition(merge, &conditions), -EINVAL);
	conditions.steps[0].next[0] = RELAY_CONDITION_REFUSE;
	CHECK_EQ(relay_merge_set_condition(merge, &conditions), 0);
	CHECK_EQ(relay_merge_set_condition(merge, &conditions), -EINVAL);
	CHECK_EQ(relay_merge_add_process(merge, &process), 0);

	AUTOPTR(relay_merge) late = relay_merge_new(0, UINT64_MAX);

	process.layouts = one_u32();
	CHECK_EQ(relay_merge_add_process(late, &process), 0);
	CHECK_EQ(relay_merge_set_condition(late, &conditions), -EINVAL);
}

static bool is_over;

/* Ends a string, and lets it go on, all the time. */
static void *change(void *null)
{
	while (!__atomic_load_n(&is_over, __ATOMIC_RELAXED)) {
		__atomic_store_n((char *)null, 'a', __ATOMIC_RELAXED);
		__atomic_store_n((char *)null, 0, __ATOMIC_RELAXED);
	}
	return NULL;
}

/* Whoever can write to a recorded file can do this while it is read. */
TEST(nothing_is_read_beyond_an_event_that_changes)
{
	const struct relay_trace_field fields[] = {{"s", RELAY_TRACE_STRING}};
	const struct relay_trace_event event = {.provider = "p", .name = "e", .fields = fields, .n_fields = 1};
	const struct relay_conditions conditions[] = {
	    condition_of("s", "*b",
	                 (struct relay_condition_step){.operand = RELAY_OPERAND_PATTERN, .accepts = RELAY_EQUAL}),
	    condition_of("s", "aaaaaaaab",
	                 (struct relay_condition_step){.operand = RELAY_OPERAND_TEXT, .accepts = RELAY_EQUAL}),
	};
	unsigned char *pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned char *end = pages + PAGE;
	pthread_t thread;

	CHECK(pages != MAP_FAILED && mprotect(end, PAGE, PROT_NONE) == 0);
	memset(pages, 'a', PAGE - 1);
	CHECK_EQ(pthread_create(&thread, NULL, change, end - 1), 0);
	for (size_t i = 0; i < 2; i++) {
		struct relay_comparison comparison;
		uint16_t n = 0;
		uint16_t first = relay_condition_resolve(&conditions[i], 0, &event, &comparison, &n);

		CHECK(n == 1);
		for (unsigned round = 0; round < N_ROUNDS; round++)
			CHECK(!relay_condition_takes(&comparison, first, end - 8, end));
		relay_comparisons_clear(&comparison, n);
	}
	__atomic_store_n(&is_over, true, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
	munmap(pages, 2 * PAGE);
}
