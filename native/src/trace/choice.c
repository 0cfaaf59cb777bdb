/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "trace/choice.h"

#include "trace/condition.h"
#include "trace/declared.h"
#include "trace/threads.h"

#include <stdlib.h>
#include <string.h>

struct choice {
	struct relay_retired retired;
	uint64_t version, wanted;
	uint16_t first[RELAY_N_TRACINGS]; /* of each trace's comparisons, or RELAY_TAKE or RELAY_REFUSE */
	uint16_t n;
	struct relay_comparison comparisons[];
};

/* --- making --- */

/* By an event's number. NULL: no event had a condition so far. Writer: relay_choice_make(). */
static struct choice **choices;

static void free_choice(void *arg)
{
	struct choice *choice = arg;
	relay_comparisons_clear(choice->comparisons, choice->n);
	free(choice);
}

/* Return a choice with room for all comparisons. NULL: no memory. */
static struct choice *new_choice(const struct relay_wishes *wishes)
{
	size_t n = 0;
	for (unsigned slot = 0; slot < RELAY_N_TRACINGS; slot++)
		if (wishes->conditions[slot])
			n += relay_condition_length(wishes->conditions[slot], wishes->number[slot]);
	return calloc(1, sizeof(struct choice) + n * sizeof(struct relay_comparison));
}

static void resolve(struct choice *choice, const struct relay_trace_event *event, uint64_t wanted,
                    const struct relay_wishes *wishes)
{
	for (unsigned slot = 0; slot < RELAY_N_TRACINGS; slot++) {
		uint16_t first = RELAY_REFUSE;
		if (wanted >> slot & 1)
			first = wishes->conditions[slot]
			            ? relay_condition_resolve(wishes->conditions[slot], wishes->number[slot], event,
			                                      choice->comparisons, &choice->n)
			            : RELAY_TAKE;
		if (first == RELAY_REFUSE)
			wanted &= ~(1ull << slot);
		choice->first[slot] = first;
	}
	choice->wanted = wanted | (choice->n ? RELAY_HAS_CONDITION : 0);
}

static uint64_t without_conditions(uint64_t wanted, const struct relay_wishes *wishes)
{
	for (unsigned slot = 0; slot < RELAY_N_TRACINGS; slot++)
		if (wishes->conditions[slot])
			wanted &= ~(1ull << slot);
	return wanted;
}

uint64_t relay_choice_make(const struct relay_trace_event *event, uint64_t wanted, const struct relay_wishes *wishes,
                           uint64_t version)
{
	const uint64_t plain = without_conditions(wanted, wishes);
	if (plain == wanted)
		return wanted;
	struct choice **all = choices ? choices : calloc(RELAY_N_NUMBERS, sizeof(struct choice *));
	/* Pairs with the acquire in relay_choose(): the cleared memory before it. */
	__atomic_store_n(&choices, all, __ATOMIC_RELEASE);
	struct choice *old = all ? all[event->id] : NULL;
	if (old && old->version == version)
		return old->wanted;
	struct choice *choice = all ? new_choice(wishes) : NULL;
	if (!choice)
		return plain;
	choice->version = version;
	resolve(choice, event, wanted, wishes);
	wanted = choice->wanted;
	if (!(wanted & RELAY_HAS_CONDITION)) {
		free_choice(choice);
		return wanted;
	}
	/* Pairs with the acquire in relay_choose(): the choice's members before the pointer. */
	__atomic_store_n(&all[event->id], choice, __ATOMIC_RELEASE);
	if (old)
		relay_trace_retire(&old->retired, free_choice, old);
	return wanted;
}

/* --- evaluating --- */

/* The choice may be newer than `wanted`; then the newer one decides for the traces in `wanted`. It is never older, because
 * it was stored before. */
uint64_t relay_choose(const struct relay_trace_event *event, uint64_t wanted, const struct relay_trace_record *record,
                      size_t length)
{
	wanted = (uint32_t)wanted & ~RELAY_HAS_CONDITION;
	struct choice **all = __atomic_load_n(&choices, __ATOMIC_ACQUIRE);
	if (!record)
		return wanted;
	if (!all)
		return 0;
	const struct choice *choice = __atomic_load_n(&all[event->id], __ATOMIC_ACQUIRE);
	const unsigned char *fields = (const unsigned char *)(record + 1),
			    *end = (const unsigned char *)record + length;
	for (uint64_t bits = wanted; bits; bits &= bits - 1) {
		unsigned slot = (unsigned)__builtin_ctzll(bits);
		if (!relay_condition_takes(choice->comparisons, choice->first[slot], fields, end))
			wanted &= ~(1ull << slot);
	}
	return wanted;
}
