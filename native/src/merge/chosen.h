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
	struct relay_comparison *comparisons; /* n of them */
	bool has_range;                       /* the condition is one comparison, which is true for `range` */
	/* Of the first one of a group: how many choices it has, and, with has_range, the range in which all of theirs lie. */
	uint32_t n_in_group;
	struct relay_range range, all;
};

/* Choices with the same has_range whose conditions are one comparison each, of the same field, are a group; each other one is a
 * group of its own. */
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
