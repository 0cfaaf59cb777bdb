/* SPDX-License-Identifier: MIT */
/*
 * This process's copy of the traces in the control file. It is made anew by the first event after a change: the
 * server's change increases relay_trace_page.generation. The upper half of an event's `wanted` is the generation for which
 * it was decided which traces want the event.
 */
#define _GNU_SOURCE
#include "trace/process.h"

#include "trace/choice.h"
#include "trace/control_file.h"
#include "trace/early.h"
#include "trace/joined.h"
#include "trace/process_files.h"
#include "trace/selection.h"
#include "trace/states.h"
#include "trace/threads.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The generation for early events while there is no control file, or one whose generation is 0. */
#define BEFORE_ANY (1ull << 32)
/* A generation that no control file has, because the lower half of theirs is 0. */
#define NO_GENERATION 1ull

/* The largest sub-buffer of all traces in bytes. Writer: note_largest(), under relay_trace_lock(). */
static uint64_t largest_subbuf;

/* Under relay_trace_lock(). */
static struct {
	bool is_on; /* relay_traced_begin() had memory */
	struct relay_trace_home home;
	struct relay_traces *control;                /* NULL: no control file was found yet */
	uint64_t generation;                         /* of the copy in `traces` */
	uint64_t version;                            /* counts what may change a decision */
	struct relay_trace traces[RELAY_N_TRACINGS]; /* id 0: no trace. [RELAY_EARLY]: the trace of early events */
} all;

/* --- what traces want --- */

static bool wants_process(const struct relay_trace *trace)
{
	/* Only some filters need the pid, which takes a system call. */
	const uint32_t pid = strstr(trace->filter, "pid:") ? relay_trace_pid(&all.home) : 0;
	return relay_selects_process(trace, program_invocation_short_name, pid, geteuid());
}

/* Return the generation to store in `wanted`. It must not be 0 while early events are written, because an event whose
 * `wanted` is equal to the page's generation is not written, and both are 0 at first. */
static uint64_t generation_now(void)
{
	return all.traces[RELAY_EARLY].id && all.generation < BEFORE_ANY ? BEFORE_ANY : all.generation;
}

/* As relay_selects_event(). */
static bool wants_event(const struct relay_trace *trace, const struct relay_trace_event *event, int *condition)
{
	char name[2 * RELAY_TRACE_NAME_BYTES];
	snprintf(name, sizeof(name), "%s:%s", event->provider, event->name);
	return relay_selects_event(trace, name, condition);
}

/* Return the value of event->wanted: a bit for each slot whose trace wants the event, and for which generation that is. */
static uint64_t wanted_now(const struct relay_trace_event *event)
{
	struct relay_wishes wishes = {0};
	uint64_t bits = 0;
	for (unsigned slot = 0; slot < RELAY_N_TRACINGS && event->id; slot++) {
		const struct relay_trace *trace = &all.traces[slot];
		int condition;
		if (!trace->id || !trace->is_started || !wants_process(trace) || !wants_event(trace, event, &condition))
			continue;
		bits |= 1ull << slot;
		if (condition >= 0) {
			wishes.conditions[slot] = &trace->conditions;
			wishes.number[slot] = (unsigned)condition;
		}
	}
	return relay_choice_make(event, generation_now() | bits, &wishes, all.version);
}

/* --- what tracepoints load: the pages of objects, and `wanted` of each event --- */

/* Decide which traces want the event, and add their bits to *arg. */
static void decide_wanted(struct relay_trace_event *event, void *arg)
{
	uint64_t *wanted = arg, now = wanted_now(event);
	*wanted |= now;
	/* As in relay_traced_decide(). */
	if (!relay_joined_has_retired())
		__atomic_store_n(&event->wanted, now, __ATOMIC_RELEASE);
}

static void clear_wanted(struct relay_trace_event *event, void *unused)
{
	(void)unused;
	/* Relaxed: emit(), trace/tracepoint.c, finds that the generation in `wanted` is not the page's. */
	__atomic_store_n(&event->wanted, 0, __ATOMIC_RELAXED);
}

/* Have each event call relay_traced_decide() the next time; or decide here, for threads that may make no system calls
 * and therefore cannot take relay_trace_lock(). */
static void renew_wanted(void)
{
	uint64_t unused = 0;
	all.version++;
	relay_objects_each_event(relay_joined_is_silent() ? decide_wanted : clear_wanted, &unused);
}

/* Return the generation in the pages of objects while early events are written; 0: none are. */
static uint64_t waiting_generation(void)
{
	return all.traces[RELAY_EARLY].id ? generation_now() : 0;
}

static void show_all(void)
{
	relay_objects_show(all.control, waiting_generation());
	renew_wanted();
}

/* --- states --- */

/* Write a state to the trace of a slot, if that is joined. */
static void put_state(unsigned slot, unsigned index)
{
	const struct relay_trace *trace = &all.traces[slot];
	struct relay_tracing *tracing = relay_joined_at(slot);
	const struct relay_declared *declared = relay_state_declared(index);
	int condition;
	if (tracing && tracing->id == trace->id)
		relay_tracing_put_state(tracing, index,
		                        declared && wants_process(trace) &&
		                            wants_event(trace, &declared->event, &condition));
}

static void put_states(unsigned slot)
{
	for (unsigned index = 0; index < relay_states_used(); index++)
		put_state(slot, index);
}

/* Write a state to each joined trace; and all states where some could not be written before. */
static void put_everywhere(unsigned index)
{
	for (unsigned slot = 0; slot < RELAY_N_TRACINGS; slot++) {
		struct relay_tracing *tracing = relay_joined_at(slot);
		if (tracing && tracing->has_unwritten) {
			tracing->has_unwritten = false;
			put_states(slot);
		} else {
			put_state(slot, index);
		}
	}
}

/* --- joining and leaving traces --- */

/* If another server has changed the control file, open a new session (trace/join.h) with it for each joined trace. */
static void renew_sessions(void)
{
	for (unsigned slot = 0; slot < RELAY_N_TRACES; slot++) {
		const struct relay_trace *trace = &all.traces[slot];
		struct relay_tracing *tracing = relay_joined_at(slot);
		if (tracing && tracing->id == trace->id && !relay_tracing_renew(tracing, &all.home, trace))
			relay_joined_leave(slot);
	}
}

/* If the trace of early events exists now, add the early events to it. */
static void check_early(void)
{
	for (unsigned slot = 0; all.traces[RELAY_EARLY].id && slot < RELAY_N_TRACES; slot++)
		if (all.traces[slot].id && strcmp(all.traces[slot].name, all.traces[RELAY_EARLY].name) == 0) {
			relay_joined_end_early(&all.home, all.control, slot, &all.traces[slot]);
			all.traces[RELAY_EARLY].id = 0;
		}
	show_all();
}

/* Set largest_subbuf, by which map_large(), trace/tracepoint.c, allocates no memory for an event that is too large
 * for all traces. */
static void note_largest(void)
{
	uint64_t largest = 0;
	for (unsigned slot = 0; slot < RELAY_N_TRACINGS; slot++)
		if (all.traces[slot].id && all.traces[slot].subbuf_size > largest)
			largest = all.traces[slot].subbuf_size;
	/* Relaxed: no other memory depends on the number, which relay_traced_holds() loads. */
	__atomic_store_n(&largest_subbuf, largest, __ATOMIC_RELAXED);
}

/* Copy the traces if the control file has changed, and leave joined traces that have gone. */
static void update_traces(void)
{
	uint64_t generation, before = all.generation;
	bool is_early = all.traces[RELAY_EARLY].id;
	/* Pairs with the release in announce(), trace/control_file.c: the slots that were changed before. */
	while (all.control && (generation = __atomic_load_n(&relay_traces_page(all.control)->generation,
	                                                    __ATOMIC_ACQUIRE)) != all.generation) {
		for (unsigned slot = 0; slot < RELAY_N_TRACES; slot++)
			if (relay_traces_get(all.control, slot, &all.traces[slot]))
				all.traces[slot].id = 0;
		all.generation = generation;
		all.version++;
		renew_sessions();
		relay_joined_declare_again();
		if (is_early)
			check_early();
	}
	for (unsigned slot = 0; slot < RELAY_N_TRACES; slot++)
		if (relay_joined_at(slot) && relay_joined_at(slot)->id != all.traces[slot].id)
			relay_joined_leave(slot);
	relay_trace_free_retired();
	note_largest();
	/* The rules may have changed. */
	for (unsigned slot = 0; all.generation != before && slot < RELAY_N_TRACINGS; slot++)
		put_states(slot);
}

/* Return the tracing of a slot, joined if it is not yet. NULL: no trace is started there, or joining has failed. */
static struct relay_tracing *join(unsigned slot, size_t length)
{
	const struct relay_trace *trace = &all.traces[slot];
	if (relay_joined_at(slot) || !trace->id || !trace->is_started)
		return relay_joined_at(slot);
	struct relay_tracing *tracing = relay_joined_join(&all.home, all.control, slot, trace, length);
	put_states(slot);
	return tracing;
}

/* --- for tracepoints --- */

bool relay_traced_holds(size_t length)
{
	/* Relaxed: see note_largest(). */
	return length <= __atomic_load_n(&largest_subbuf, __ATOMIC_RELAXED);
}

void relay_traced_look(void *unused)
{
	(void)unused;
	update_traces();
}

uint64_t relay_traced_decide(struct relay_trace_event *event)
{
	update_traces();
	uint64_t wanted = wanted_now(event);
	/* Pairs with the acquire in choose(), trace/tracepoint.c: the choice of the event before it. `wanted` is not
	 * stored while a left trace is to be freed, so that the next event calls update_traces(), which frees it, again. */
	if (!relay_joined_has_retired())
		__atomic_store_n(&event->wanted, wanted, __ATOMIC_RELEASE);
	return wanted;
}

struct relay_tracing *relay_traced_at(unsigned slot, size_t length)
{
	update_traces();
	return join(slot, length);
}

void relay_traced_set_state(const struct relay_trace_event *event, const void *fields, size_t length)
{
	update_traces();
	int index = relay_state_set(event, fields, length);
	if (index >= 0)
		put_everywhere((unsigned)index);
}

void relay_traced_clear_state(const struct relay_trace_event *event, const void *fields, size_t length)
{
	update_traces();
	for (int index; (index = relay_state_clear(event, fields, length)) >= 0;)
		put_everywhere((unsigned)index);
}

void relay_traced_prepare(void)
{
	uint64_t wanted = 0;
	update_traces();
	relay_joined_silence();
	relay_objects_each_event(decide_wanted, &wanted);
	for (unsigned slot = 0; slot < RELAY_N_TRACINGS; slot++)
		if ((uint32_t)wanted & 1u << slot)
			join(slot, 0);
}

/* --- for the objects of the program --- */

static bool waits(void)
{
	return !all.control || all.traces[RELAY_EARLY].id;
}

/* Use the traces of this control file from now on; `home` and `control` then belong to `all`. */
static void connect(const struct relay_trace_home *home, struct relay_traces *control)
{
	struct relay_trace_home old_home = all.home;
	struct relay_traces *old = all.control;
	all.home = *home;
	all.control = control;
	all.generation = NO_GENERATION;
	update_traces();
	show_all();
	relay_traces_close(old);
	relay_trace_home_free(&old_home);
}

bool relay_traced_begin(const char *early)
{
	struct relay_trace_home home;
	struct relay_traces *control;
	all.is_on = relay_joined_begin();
	if (!all.is_on)
		return false;
	if (early && !relay_early_parse(early, &all.traces[RELAY_EARLY]))
		all.traces[RELAY_EARLY].id = 0;
	if (relay_trace_find(&home, &control))
		connect(&home, control);
	else
		show_all();
	return waits();
}

bool relay_traced_begin_child(void)
{
	relay_joined_begin_child();
	/* A filter pid:N may select the parent and not the child, or the reverse. */
	renew_wanted();
	if (!all.is_on || !waits())
		return false;
	show_all();
	return true;
}

void relay_traced_add(struct relay_trace_object *object)
{
	relay_objects_add(object);
	if (all.is_on)
		relay_object_show(object, all.control, waiting_generation());
}

void relay_traced_add_declared(struct relay_declared *declared)
{
	relay_objects_add_declared(declared);
	relay_joined_declare(&declared->event);
}

bool relay_traced_place(struct relay_place *place, const char *channel)
{
	sigset_t before;
	relay_trace_lock(&before);
	const char *root = all.home.store ? all.home.store : all.home.mount;
	*place = (struct relay_place){
	    .root = root ? strdup(root) : NULL, .in_store = all.home.store != NULL, .channel = strdup(channel)};
	relay_trace_unlock(&before);
	if (place->root && place->channel)
		return true;
	relay_place_free(place);
	return false;
}

/* --- for the thread of trace/wait.c --- */

/* Leave all traces but that of early events, because another control file is to be used. */
static void leave_store(void)
{
	for (unsigned slot = 0; slot < RELAY_N_TRACES; slot++) {
		if (relay_joined_at(slot))
			relay_joined_leave(slot);
		all.traces[slot].id = 0;
	}
}

void relay_traced_connect(const struct relay_trace_home *home, struct relay_traces *control, char **carried)
{
	sigset_t before;
	relay_trace_lock(&before);
	leave_store();
	*carried = relay_joined_carry(home);
	connect(home, control);
	relay_trace_unlock(&before);
}

bool relay_traced_has_left(void)
{
	sigset_t before;
	relay_trace_lock(&before);
	relay_trace_free_retired();
	bool has_left = !relay_joined_has_retired();
	relay_trace_unlock(&before);
	return has_left;
}

bool relay_traced_waits(struct relay_traced_state *state)
{
	sigset_t before;
	relay_trace_lock(&before);
	if (all.control && all.traces[RELAY_EARLY].id)
		update_traces();
	const struct relay_trace_page *page = all.control ? relay_traces_page(all.control) : NULL;
	*state = (struct relay_traced_state){
	    .early = all.traces[RELAY_EARLY],
	    .changes = page ? (uint32_t *)&page->changes : NULL,
	    .changed = all.generation >> 32,
	    .has_mount = all.home.mount,
	};
	bool is_waiting = waits();
	relay_trace_unlock(&before);
	return is_waiting;
}
