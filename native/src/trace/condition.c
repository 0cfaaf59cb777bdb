/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "trace/condition.h"

#include "trace/field_types.h"
#include "trace/tsdl.h"

#include <stdlib.h>
#include <string.h>

/* --- the form in the control file --- */

static bool is_target(const struct relay_conditions *conditions, uint32_t from, uint8_t to)
{
	return to >= RELAY_CONDITION_TAKE || (to > from && to < conditions->n_steps);
}

bool relay_conditions_are_sound(const struct relay_conditions *conditions)
{
	if (conditions->n_steps > RELAY_CONDITION_STEPS || conditions->n_conditions > RELAY_CONDITION_STEPS ||
	    conditions->texts[RELAY_CONDITION_TEXT_BYTES - 1])
		return false;
	for (uint32_t i = 0; i < conditions->n_conditions; i++)
		if (conditions->first[i] >= conditions->n_steps)
			return false;
	for (uint32_t i = 0; i < conditions->n_steps; i++) {
		const struct relay_condition_step *step = &conditions->steps[i];
		if (step->operand >= RELAY_N_OPERANDS || step->field >= RELAY_CONDITION_TEXT_BYTES ||
		    step->text >= RELAY_CONDITION_TEXT_BYTES || !is_target(conditions, i, step->next[0]) ||
		    !is_target(conditions, i, step->next[1]))
			return false;
	}
	return true;
}

/* Return a bit for each step that a condition can come to; 0: there is no such condition. */
static uint64_t steps_of(const struct relay_conditions *conditions, unsigned number)
{
	if (number >= conditions->n_conditions)
		return 0;
	uint64_t steps = 1ull << conditions->first[number];
	for (uint32_t i = conditions->first[number]; i < conditions->n_steps; i++)
		for (int k = 0; k < 2 && steps >> i & 1; k++)
			if (conditions->steps[i].next[k] < RELAY_CONDITION_STEPS)
				steps |= 1ull << conditions->steps[i].next[k];
	return steps;
}

unsigned relay_condition_length(const struct relay_conditions *conditions, unsigned number)
{
	return (unsigned)__builtin_popcountll(steps_of(conditions, number));
}

/* --- for one event --- */

static struct relay_step *path_to(const struct relay_trace_event *event, uint32_t index)
{
	uint32_t types[RELAY_FIELDS_MAX];
	for (uint32_t i = 0; i < index; i++)
		types[i] = event->fields[i].type;
	return relay_steps_make(types, index, 0);
}

static bool bind_real(struct relay_comparison *comparison, const struct relay_condition_step *step)
{
	comparison->compared = RELAY_REALS;
	switch (step->operand) {
	case RELAY_OPERAND_POSITIVE:
		comparison->real = (double)step->number;
		return true;
	case RELAY_OPERAND_NEGATIVE:
		comparison->real = (double)(int64_t)step->number;
		return true;
	case RELAY_OPERAND_REAL:
		memcpy(&comparison->real, &step->number, sizeof(comparison->real));
		return true;
	default:
		return false;
	}
}

static bool bind_label(struct relay_comparison *comparison, const struct relay_trace_enum *labels, const char *name)
{
	for (uint32_t i = 0; labels && i < labels->n_labels; i++)
		if (strcmp(labels->labels[i].name, name) == 0) {
			comparison->integer = (uint64_t)labels->labels[i].value;
			comparison->is_negative = comparison->kind == RELAY_FIELD_SIGNED && labels->labels[i].value < 0;
			return true;
		}
	return false;
}

/* Set the constant of a comparison. false: the field is of another type, or no memory. */
static bool bind(struct relay_comparison *comparison, const struct relay_condition_step *step, const char *text,
                 const struct relay_trace_enum *labels)
{
	const bool is_text = step->operand == RELAY_OPERAND_TEXT || step->operand == RELAY_OPERAND_PATTERN;
	switch ((enum relay_field_kind)comparison->kind) {
	case RELAY_FIELD_UNSIGNED:
	case RELAY_FIELD_SIGNED:
	case RELAY_FIELD_HEX:
		if (step->operand == RELAY_OPERAND_REAL)
			return bind_real(comparison, step);
		if (step->operand == RELAY_OPERAND_TEXT)
			return bind_label(comparison, labels, text);
		comparison->integer = step->number;
		comparison->is_negative = step->operand == RELAY_OPERAND_NEGATIVE && (int64_t)step->number < 0;
		return !is_text;
	case RELAY_FIELD_REAL:
		return bind_real(comparison, step);
	case RELAY_FIELD_STRING:
		comparison->compared = step->operand == RELAY_OPERAND_TEXT ? RELAY_TEXTS : RELAY_PATTERN;
		comparison->text = is_text ? strdup(text) : NULL;
		return comparison->text;
	case RELAY_FIELD_BYTES:
		break;
	}
	return false;
}

/* Make the comparison of a step. false: the event has no such field, or it is of another type, or no memory. */
static bool compare(struct relay_comparison *comparison, const struct relay_conditions *conditions,
                    const struct relay_condition_step *step, const struct relay_trace_event *event)
{
	const char *name = conditions->texts + step->field;
	uint32_t i = 0;
	while (i < event->n_fields && strcmp(event->fields[i].name, name) != 0)
		i++;
	if (i == event->n_fields || i > RELAY_FIELDS_MAX)
		return false;
	const uint32_t type = event->fields[i].type;
	if (relay_field_count(type) || type & RELAY_TRACE_IS_SEQUENCE)
		return false;
	*comparison = (struct relay_comparison){
	    .accepts = step->accepts,
	    .kind = (uint8_t)relay_field_base(type)->kind,
	    .bytes = (uint8_t)relay_field_base(type)->bytes,
	};
	const struct relay_trace_enum *labels = type & RELAY_TRACE_IS_ENUM ? relay_field_enum(event, name) : NULL;
	if (!bind(comparison, step, conditions->texts + step->text, labels))
		return false;
	comparison->path = path_to(event, i);
	if (!comparison->path)
		relay_comparisons_clear(comparison, 1);
	return comparison->path;
}

static bool accepts_level(const struct relay_condition_step *step, unsigned level)
{
	return step->accepts & relay_order_of_integers(level, false, step->number, false);
}

uint16_t relay_condition_resolve(const struct relay_conditions *conditions, unsigned number,
                                 const struct relay_trace_event *event, struct relay_comparison *to, uint16_t *n)
{
	const uint64_t steps = steps_of(conditions, number);
	const uint16_t n_before = *n;
	uint16_t target[UINT8_MAX + 1]; /* what relay_condition_step.next becomes in relay_comparison.next */
	target[RELAY_CONDITION_TAKE] = RELAY_TAKE;
	target[RELAY_CONDITION_REFUSE] = RELAY_REFUSE;
	/* From the last step on, because target[] of a step depends on later steps. */
	for (unsigned i = RELAY_CONDITION_STEPS; i-- > 0;) {
		const struct relay_condition_step *step = &conditions->steps[i];
		bool is_level = step->operand == RELAY_OPERAND_LEVEL;
		if (!(steps >> i & 1))
			continue;
		if (is_level ? !event->level : !compare(&to[*n], conditions, step, event)) {
			relay_comparisons_clear(to + n_before, *n - n_before);
			*n = n_before;
			return RELAY_REFUSE;
		}
		uint16_t next[2] = {target[step->next[0]], target[step->next[1]]};
		if (is_level) {
			target[i] = next[accepts_level(step, event->level - 1u)];
			continue;
		}
		memcpy(to[*n].next, next, sizeof(next));
		target[i] = (*n)++;
	}
	return steps ? target[conditions->first[number]] : RELAY_REFUSE;
}

void relay_comparisons_clear(struct relay_comparison *comparisons, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		free(comparisons[i].path);
		if (comparisons[i].compared >= RELAY_TEXTS)
			free(comparisons[i].text);
	}
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
static bool matches(const char *pattern, const char *text, const char *end)
{
	const char *after_star = NULL, *again = NULL;
	while (text < end) {
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

static enum relay_order order_of_texts(const struct relay_comparison *comparison, const char *text, size_t length)
{
	if (comparison->compared == RELAY_PATTERN)
		return matches(comparison->text, text, text + length) ? RELAY_EQUAL : RELAY_LESS;
	const size_t other = strlen(comparison->text);
	int order = memcmp(text, comparison->text, length < other ? length : other);
	if (!order)
		return relay_order_of_integers(length, false, other, false);
	return order < 0 ? RELAY_LESS : RELAY_GREATER;
}

/* Compare the field, which begins at `at`, with the constant. Returns one of enum relay_order; 0: the field is not complete. */
static unsigned order_at(const struct relay_comparison *comparison, const unsigned char *at, const unsigned char *end)
{
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
	const unsigned char *null = memchr(at, 0, (size_t)(end - at));
	return null ? order_of_texts(comparison, (const char *)at, (size_t)(null - at)) : 0;
}

static unsigned order_of(const struct relay_comparison *comparison, const unsigned char *fields,
                         const unsigned char *end)
{
	return order_at(comparison, relay_pass_event(comparison->path, fields, end), end);
}

bool relay_comparison_takes(const struct relay_comparison *comparison, const unsigned char *at,
                            const unsigned char *end)
{
	const unsigned order = order_at(comparison, at, end);
	return order && comparison->next[(comparison->accepts & order) != 0] == RELAY_TAKE;
}

bool relay_condition_takes(const struct relay_comparison *comparisons, uint16_t first, const unsigned char *fields,
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

/* --- ranges --- */

/* The values of signed fields are ordered as those of unsigned ones if the least one becomes 0. */
static uint64_t shifted(const struct relay_comparison *comparison, uint64_t value)
{
	return comparison->kind == RELAY_FIELD_SIGNED ? value ^ 1ull << 63 : value;
}

static bool takes_order(const struct relay_comparison *comparison, enum relay_order order)
{
	return comparison->next[(comparison->accepts & order) != 0] == RELAY_TAKE;
}

bool relay_comparison_range(const struct relay_comparison *comparison, struct relay_range *range)
{
	const bool is_signed = comparison->kind == RELAY_FIELD_SIGNED;
	bool less = takes_order(comparison, RELAY_LESS), equal = takes_order(comparison, RELAY_EQUAL),
	     greater = takes_order(comparison, RELAY_GREATER);
	if (comparison->compared != RELAY_INTEGERS)
		return false;
	/* All values of the field are on the same side of a number that is no value of its type. */
	if (comparison->is_negative && !is_signed)
		less = equal = greater;
	else if (!comparison->is_negative && is_signed && comparison->integer > INT64_MAX)
		greater = equal = less;
	const uint64_t number = shifted(comparison, comparison->integer);
	less = less && number > 0;
	greater = greater && number < UINT64_MAX;
	const bool is_other = less && greater && !equal; /* from behind the number, by way of 0, to before it */
	range->low = less && !is_other ? 0 : number + !equal;
	range->span = (greater && !is_other ? UINT64_MAX : number - !equal) - range->low;
	return less || equal || greater;
}

bool relay_range_load(const struct relay_comparison *comparison, const unsigned char *at, const unsigned char *end,
                      uint64_t *value)
{
	if (!at || (size_t)(end - at) < comparison->bytes)
		return false;
	*value = shifted(comparison, load(comparison, at));
	return true;
}
