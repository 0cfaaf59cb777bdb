/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "trace/states.h"

#include "base/clock.h"
#include "trace/layouts.h"
#include "trace/threads.h"

#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct state {
	const struct relay_declared *declared; /* the event; NULL: the state was cleared */
	uint64_t order;                        /* greater for each change of any state */
	uint64_t mono_ns;                      /* when it was set */
	uint32_t tid;
	uint16_t key_bytes, length; /* of the fields: the first one, and all */
	unsigned char fields[RELAY_STATE_FIELDS_MAX];
};

static struct state *states; /* RELAY_STATES of them; NULL: none was set yet */
static unsigned n_used;
static uint64_t last_order, last_sequence, n_dropped;

static bool has_states(void)
{
	void *memory = states ? states
	                      : mmap(NULL, RELAY_STATES * sizeof(*states), PROT_READ | PROT_WRITE,
	                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return false;
	states = memory;
	return true;
}

/* The length of the first field; of all, if the event has none, or they are shorter. */
static size_t key_length(const struct relay_trace_event *event, const unsigned char *fields, size_t length)
{
	struct relay_step steps[2];
	if (!event->n_fields)
		return length;
	relay_steps_fill(steps, &event->fields[0].type, 1, 0);
	const unsigned char *end = relay_pass_event(steps, fields, fields + length);
	return end ? (size_t)(end - fields) : length;
}

/* Return the index of a state with this key; fields NULL: with any. n_used: there is none. */
static unsigned find(const struct relay_trace_event *event, const unsigned char *fields, size_t key_bytes)
{
	unsigned index = 0;
	for (; index < n_used; index++) {
		const struct state *state = &states[index];
		if (state->declared && state->declared->number == event->id &&
		    (!fields || (state->key_bytes == key_bytes && memcmp(state->fields, fields, key_bytes) == 0)))
			break;
	}
	return index;
}

static unsigned clear(unsigned index)
{
	states[index].declared = NULL;
	states[index].order = ++last_order;
	return index;
}

/* Return the index for a new state: one that was cleared, or was never used, or else of the one that was set longest ago,
 * which is dropped. */
static unsigned free_index(void)
{
	unsigned oldest = 0;
	for (unsigned index = 0; index < n_used; index++) {
		if (!states[index].declared)
			return index;
		if (states[index].order < states[oldest].order)
			oldest = index;
	}
	if (n_used < RELAY_STATES)
		return n_used++;
	n_dropped++;
	return oldest;
}

int relay_state_set(const struct relay_trace_event *event, const void *fields, size_t length)
{
	const size_t key_bytes = key_length(event, fields, length);
	const struct relay_declared *declared = relay_declared_get(event);
	if (!declared || !has_states())
		return -1;
	unsigned index = find(event, fields, key_bytes);
	if (length > RELAY_STATE_FIELDS_MAX) {
		n_dropped++;
		return index < n_used ? (int)clear(index) : -1;
	}
	if (index == n_used)
		index = free_index();
	struct state *state = &states[index];
	state->declared = declared;
	state->order = ++last_order;
	state->mono_ns = relay_clock_ns(CLOCK_MONOTONIC);
	state->tid = relay_trace_self.tid ? relay_trace_self.tid : (uint32_t)syscall(SYS_gettid);
	state->key_bytes = (uint16_t)key_bytes;
	state->length = (uint16_t)length;
	memcpy(state->fields, fields, length);
	return (int)index;
}

int relay_state_clear(const struct relay_trace_event *event, const void *fields, size_t length)
{
	const unsigned index = find(event, fields, fields ? key_length(event, fields, length) : 0);
	return index < n_used ? (int)clear(index) : -1;
}

unsigned relay_states_used(void)
{
	return n_used;
}

const struct relay_declared *relay_state_declared(unsigned index)
{
	return states[index].declared;
}

/* Adler-32, as zlib has it. */
static uint32_t adler32(const unsigned char *bytes, size_t length)
{
	uint32_t a = 1, b = 0;
	for (size_t i = 0; i < length; i++) {
		a = (a + bytes[i]) % 65521;
		b = (b + a) % 65521;
	}
	return b << 16 | a;
}

size_t relay_state_value(unsigned index, uint16_t id, struct relay_state_value *value)
{
	const struct state *state = &states[index];
	const size_t head_bytes = offsetof(struct relay_state_value, fields),
		     summed = offsetof(struct relay_state_value, sequence);
	const uint16_t length = id == RELAY_TRACE_EXTENDED ? 0 : state->length;
	value->magic = RELAY_STATE_MAGIC;
	value->sequence = ++last_sequence;
	value->mono_ns = state->mono_ns;
	value->n_dropped = n_dropped;
	value->id = id;
	value->length = length;
	value->tid = state->tid;
	memcpy(value->fields, state->fields, length);
	value->sum = adler32((const unsigned char *)value + summed, head_bytes - summed + length);
	return head_bytes + length;
}
