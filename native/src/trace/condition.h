/* SPDX-License-Identifier: MIT */
/* The conditions of rules (struct relay_conditions): resolving them for the fields of an event, and evaluating them. */
#ifndef RELAYFS_TRACE_CONDITION_H
#define RELAYFS_TRACE_CONDITION_H

#include "trace/layouts.h"

/* Results of a condition, in place of the index of a comparison. */
enum { RELAY_TAKE = UINT16_MAX, RELAY_REFUSE = UINT16_MAX - 1 };

enum relay_compared { RELAY_INTEGERS, RELAY_REALS, RELAY_TEXTS, RELAY_PATTERN };

/* A comparison of a field of the event with a constant. */
struct relay_comparison {
	struct relay_step *path; /* to the field, for relay_pass_event() */
	union {
		uint64_t integer; /* of an int64_t or a uint64_t */
		double real;
		char *text;
	};
	uint16_t next[2]; /* index of the comparison if it is false, and if it is true; RELAY_TAKE; RELAY_REFUSE */
	uint8_t compared; /* enum relay_compared */
	uint8_t kind;     /* of the field: enum relay_field_kind */
	uint8_t bytes;    /* of the field */
	uint8_t accepts;  /* bits of enum relay_order for which the comparison is true */
	bool is_negative; /* the integer is an int64_t below 0 */
};

/* True if all indices and offsets are within the struct, and each step leads to a later one, so that evaluating ends. */
bool relay_conditions_are_sound(const struct relay_conditions *conditions);

/* Return how many comparisons a condition has at most. `conditions` has to be sound. */
unsigned relay_condition_length(const struct relay_conditions *conditions, unsigned number);

/*
 * Find the fields of an event that a condition names, and append its comparisons to `to`, which has *n comparisons
 * and room for relay_condition_length() more. A comparison of levels is done here. The conditions have to be sound.
 *
 * Returns the index of the comparison to begin with, or RELAY_TAKE or RELAY_REFUSE: the same for all values of the fields.
 * RELAY_REFUSE also: the event lacks a field or the level, or one is of another type than what it is compared with, or no
 * memory.
 */
uint16_t relay_condition_resolve(const struct relay_conditions *conditions, unsigned number,
                                 const struct relay_trace_event *event, struct relay_comparison *to, uint16_t *n);

/*
 * Evaluate comparisons for an event whose fields are from `fields` to `end`. first: the result of relay_condition_resolve().
 * The fields may be in shared memory: nothing beyond `end` is read, and if a field is not complete, because its length or a
 * string has changed, the result is false.
 */
bool relay_condition_takes(const struct relay_comparison *comparisons, uint16_t first, const unsigned char *fields,
                           const unsigned char *end);

/* Evaluate a condition of one comparison, whose field begins at `at`, which relay_pass_event() has returned for its path. */
bool relay_comparison_takes(const struct relay_comparison *comparison, const unsigned char *at,
                            const unsigned char *end);

/* The values for which a condition of one comparison with an integer is true: `span` + 1 of them from `low` on, and 0 follows
 * UINT64_MAX. */
struct relay_range {
	uint64_t low, span;
};

/* Get the range of a condition of one comparison. false: it is none with an integer, or true for no value. */
bool relay_comparison_range(const struct relay_comparison *comparison, struct relay_range *range);

/* Load the value of the field, which begins at `at`, for relay_range_takes(). false: the field is not complete. */
bool relay_range_load(const struct relay_comparison *comparison, const unsigned char *at, const unsigned char *end,
                      uint64_t *value);

static inline bool relay_range_takes(const struct relay_range *range, uint64_t value)
{
	return value - range->low <= range->span;
}

/* Free the memory of n comparisons, but not the array. */
void relay_comparisons_clear(struct relay_comparison *comparisons, unsigned n);

/* Compare two integers; is_negative: the integer is an int64_t below 0, otherwise it is a uint64_t. */
static inline enum relay_order relay_order_of_integers(uint64_t one, bool is_negative, uint64_t other,
                                                       bool other_is_negative)
{
	if (is_negative != other_is_negative)
		return is_negative ? RELAY_LESS : RELAY_GREATER;
	/* Of two numbers below 0, too, the larger one has the larger bits. */
	return one < other ? RELAY_LESS : one > other ? RELAY_GREATER : RELAY_EQUAL;
}

#endif
