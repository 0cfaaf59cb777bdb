/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "trace/choice.h"

#include "trace/condition.h"
#include "trace/declared.h"
#include "trace/field_types.h"
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

static uint64_t load(const struct relay_comparison *comparison, const unsigned char *at)
{
	const uint64_t value = relay_load_unsigned(at, comparison->bytes);
	return comparison->kind == RELAY_FIELD_SIGNED ? (uint64_t)relay_as_signed(value, comparison->bytes) : value;
}

static double load_real(const struct relay_comparison *comparison, const unsigned char *at)
{
	if (comparison->kind == RELAY_FIELD_SIGNED)
		return (double)(int64_t)load(comparison, at);
	return comparison->kind == RELAY_FIELD_REAL ? relay_load_real(at, comparison->bytes)
	                                            : (double)load(comparison, at);
}

static enum relay_order order_of_reals(double one, double other)
{
	return one < other ? RELAY_LESS : one > other ? RELAY_GREATER : one == other ? RELAY_EQUAL : RELAY_UNORDERED;
}

/* If what follows a * does not match, it is tried again one byte later in the text; an earlier * need not be tried again. */
static bool matches(const char *pattern, const char *text)
{
	const char *after_star = NULL, *again = NULL;
	while (*text) {
		const bool is_quoted = *pattern == '\\' && pattern[1];
		if (*pattern == '*') {
			after_star = ++pattern;
			again = text;
		} else if (*pattern == '?' || (*pattern && pattern[is_quoted] == *text)) {
			pattern += 1 + is_quoted;
			text++;
		} else if (after_star) {
			pattern = after_star;
			text = ++again;
		} else {
			return false;
		}
	}
	while (*pattern == '*')
		pattern++;
	return !*pattern;
}

static enum relay_order order_of_texts(const struct relay_comparison *comparison, const char *text)
{
	if (comparison->compared == RELAY_PATTERN)
		return matches(comparison->text, text) ? RELAY_EQUAL : RELAY_LESS;
	int order = strcmp(text, comparison->text);
	return order < 0 ? RELAY_LESS : order > 0 ? RELAY_GREATER : RELAY_EQUAL;
}

/* Return how the field stands to the constant; 0: the fields end before, because the program has changed a string while
 * it was copied. */
static unsigned order_of(const struct relay_comparison *comparison, const unsigned char *fields,
                         const unsigned char *end)
{
	const unsigned char *at = relay_pass_event(comparison->path, fields, end);
	if (!at || (size_t)(end - at) < comparison->bytes)
		return 0;
	switch ((enum relay_compared)comparison->compared) {
	case RELAY_INTEGERS: {
		uint64_t value = load(comparison, at);
		bool is_negative = comparison->kind == RELAY_FIELD_SIGNED && (int64_t)value < 0;
		return relay_order_of_integers(value, is_negative, comparison->integer, comparison->is_negative);
	}
	case RELAY_REALS:
		return order_of_reals(load_real(comparison, at), comparison->real);
	case RELAY_TEXTS:
	case RELAY_PATTERN:
		break;
	}
	return memchr(at, 0, (size_t)(end - at)) ? order_of_texts(comparison, (const char *)at) : 0;
}

/* Evaluate the comparisons from `first` on for an event whose fields are from `fields` to `end`. */
static bool takes(const struct relay_comparison *comparisons, uint16_t first, const unsigned char *fields,
                  const unsigned char *end)
{
	uint16_t at = first;
	while (at < RELAY_REFUSE) {
		unsigned order = order_of(&comparisons[at], fields, end);
		if (!order)
			return false;
		at = comparisons[at].next[(comparisons[at].accepts & order) != 0];
	}
	return at == RELAY_TAKE;
}

/* The choice may be a later one than `wanted`, which then counts for the traces of `wanted`. It is never an earlier one,
 * because it was stored before. */
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
		if (!takes(choice->comparisons, choice->first[slot], fields, end))
			wanted &= ~(1ull << slot);
	}
	return wanted;
}
