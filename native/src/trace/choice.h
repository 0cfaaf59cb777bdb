/* SPDX-License-Identifier: MIT */
/*
 * Choices: for each event that some trace takes under a condition, the conditions of all traces, resolved for its fields.
 * When relay_traced_decide() decides which traces want an event, it makes a choice, under relay_trace_lock(); threads that
 * write evaluate it without the lock.
 */
#ifndef RELAYFS_TRACE_CHOICE_H
#define RELAYFS_TRACE_CHOICE_H

#include "trace/early.h"

#include <relayfs/trace_store.h>

/* In relay_trace_event.wanted, beside the bits of traces: one of them has a condition, so relay_choose() has to be called. */
#define RELAY_HAS_CONDITION (1ull << 31)

/* The conditions that traces have for an event. */
struct relay_wishes {
	const struct relay_conditions *conditions[RELAY_N_TRACINGS]; /* by slot; NULL: no condition */
	unsigned number[RELAY_N_TRACINGS];
};

/*
 * Make the choice of an event. The caller holds relay_trace_lock().
 *
 * wanted    the value of event->wanted without conditions
 * version   of the traces; if the event's last choice has it, that choice stays
 *
 * Returns the value to store in event->wanted, with release, with RELAY_HAS_CONDITION if there is anything to choose. Traces
 * that take no event like this are left out, and so are those with a condition if there is no memory.
 */
uint64_t relay_choice_make(const struct relay_trace_event *event, uint64_t wanted, const struct relay_wishes *wishes,
                           uint64_t version);

/* Return the bits of those traces of `wanted` that take this record. wanted: event->wanted, loaded with acquire. record:
 * NULL: the event is lost, and all traces count it. The caller is between relay_trace_enter() and relay_trace_leave(). */
uint64_t relay_choose(const struct relay_trace_event *event, uint64_t wanted, const struct relay_trace_record *record,
                      size_t length);

#endif
