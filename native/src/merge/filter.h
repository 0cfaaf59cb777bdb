/* SPDX-License-Identifier: MIT */
/* Which events of a process meet a merge's condition: as in the program, if a trace has it (trace/choice.h). */
#ifndef RELAYFS_MERGE_FILTER_H
#define RELAYFS_MERGE_FILTER_H

#include "trace/layouts.h"

struct relay_filter;

/* Make a filter of the first of these conditions, which have to be sound and to stay as long. NULL: no memory. */
struct relay_filter *relay_filter_new(const struct relay_conditions *conditions);
void relay_filter_free(struct relay_filter *filter);

/* 1: the event at which the cursor is, which has a declaration, meets the condition; 0: it does not; -ENOMEM. */
int relay_filter_takes(struct relay_filter *filter, const struct relay_event_cursor *cursor);

#endif
