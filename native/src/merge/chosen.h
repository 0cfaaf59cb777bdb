/* SPDX-License-Identifier: MIT */
/* Which triggers (triggers.c) wait for the events of a process, by the events' ids. */
#ifndef RELAYFS_MERGE_CHOSEN_H
#define RELAYFS_MERGE_CHOSEN_H

#include "trace/condition.h"

/* A trigger that waits for an event, and its condition for the event's fields. */
struct relay_choice {
	uint32_t trigger; /* its index */
	uint16_t first;   /* as relay_condition_resolve() returns it; RELAY_TAKE without a condition */
	uint16_t n;
	/* Of a condition of one comparison: the index of the first choice with this has_range whose comparison is of the same
	 * field, which may be this one. */
	uint32_t same_field;
	bool has_range; /* `range` is that of the comparison */
	struct relay_range range;
	struct relay_comparison *comparisons; /* n of them */
};

struct relay_choices {
	uint32_t n;
	struct relay_choice at[];
};

struct relay_chosen {
	uint64_t generation;       /* of the triggers that the choices are of */
	struct relay_choices **of; /* n of them, by event id; NULL: no event of this id was seen yet */
	size_t n;
};

/* NULL: no memory. */
struct relay_chosen *relay_chosen_new(void);
void relay_chosen_free(struct relay_chosen *chosen);

/* Forget all choices. */
void relay_chosen_clear(struct relay_chosen *chosen, uint64_t generation);

void relay_choices_free(struct relay_choices *choices);

#endif
