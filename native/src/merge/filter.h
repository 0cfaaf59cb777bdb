/* SPDX-License-Identifier: MIT */
/* Which events of a process meet the condition of a merge: those that the program would write to a trace with this
 * condition (trace/choice.h). */
#ifndef RELAYFS_MERGE_FILTER_H
#define RELAYFS_MERGE_FILTER_H

#include "trace/layouts.h"

struct relay_filter;

/* Make a filter of the first one of the conditions. The caller has checked that they are sound, and keeps them until
 * relay_filter_free(). NULL: no memory. */
struct relay_filter *relay_filter_new(const struct relay_conditions *conditions);
void relay_filter_free(struct relay_filter *filter);

/* Evaluate the condition for the last event of the cursor, whose cursor->layout->event must not be NULL. 1: the event
 * meets the condition; 0: it does not; -ENOMEM. */
int relay_filter_takes(struct relay_filter *filter, const struct relay_event_cursor *cursor);

#endif
