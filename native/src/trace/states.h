/* SPDX-License-Identifier: MIT */
/*
 * The states of this process: the last value of each key of its events of RELAY_TRACE_STATE(). They are in memory of the
 * process, because it may set them before it joins a trace. A state has an index, which is that of its pair of places in
 * .state (trace_store.h) of each trace.
 *
 * Callers hold relay_trace_lock(). No function calls malloc(3), because a signal handler may set a state.
 */
#ifndef RELAYFS_TRACE_STATES_H
#define RELAYFS_TRACE_STATES_H

#include "trace/declared.h"

/*
 * Set the state of the key that the fields begin with. Returns the index that has changed; -1: none, because the fields are
 * too long for a state and their key has none, or there is no memory.
 */
int relay_state_set(const struct relay_trace_event *event, const void *fields, size_t length);

/* Clear the state of the key that the fields begin with; fields NULL: of any key of the event. Returns its index; -1: there
 * is no such state. */
int relay_state_clear(const struct relay_trace_event *event, const void *fields, size_t length);

/* States have indexes less than this one. */
unsigned relay_states_used(void);

/* Return the declaration of a state's event. NULL: the state was cleared. */
const struct relay_declared *relay_state_declared(unsigned index);

/* Fill in what is to be written to .state; id: of the event in the trace; RELAY_TRACE_EXTENDED: the trace shall have no
 * state at this index. Returns the bytes. */
size_t relay_state_value(unsigned index, uint16_t id, struct relay_state_value *value);

#endif
