/* SPDX-License-Identifier: MIT */
/*
 * The traces of this process: a copy of the control file, which events each of them wants, and when this process joins and leaves
 * them.
 */
#define _GNU_SOURCE
#include "trace/process.h"

#include "trace/control_file.h"
#include "trace/early.h"
#include "trace/joined.h"
#include "trace/threads.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The generation of a page before there is a control file. */
#define BEFORE_ANY (1ull << 32)
/* No control file has it: its lower half is 0 in all of them. */
#define NO_GENERATION 1ull

/* Of the traces that look() found. Writer: note_largest(), under relay_trace_lock(). */
static uint64_t largest_subbuf;

/* Under relay_trace_lock(). */
static struct {
	bool is_on;
	struct relay_trace_home home;
	struct relay_traces *control;                /* NULL: not connected */
	uint64_t generation;                         /* of `traces` */
	struct relay_trace traces[RELAY_N_TRACINGS]; /* a copy; id 0: there is none. RELAY_EARLY: see trace/early.h */
} all;

/* --- what traces want --- */

static bool takes_term(const char *term)
{
	unsigned long number;
	char rest;
	if (sscanf(term, "pid:%lu%c", &number, &rest) == 1)
		return number == relay_trace_pid(&all.home);
	if (sscanf(term, "uid:%lu%c", &number, &rest) == 1)
		return number == (unsigned long)geteuid();
	return fnmatch(term, program_invocation_short_name, 0) == 0;
}

static bool takes_us(const struct relay_trace *trace)
{
	char filter[RELAY_TRACE_FILTER_BYTES], *next = filter, *term;
	memcpy(filter, trace->filter, sizeof(filter));
	if (!*filter)
		return true;
	while ((term = strsep(&next, ",")))
		if (takes_term(term))
			return true;
	return false;
}

static bool takes_event(const struct relay_trace *trace, const struct relay_trace_event *event)
{
	char rules[RELAY_TRACE_RULES_BYTES], name[2 * RELAY_TRACE_NAME_BYTES], *next = rules, *rule;
	memcpy(rules, trace->rules, sizeof(rules));
	snprintf(name, sizeof(name), "%s:%s", event->provider, event->name);
	bool taken = rules[0] != '+';
	while ((rule = strsep(&next, "\n")))
		if (*rule && fnmatch(rule + 1, name, 0) == 0)
			taken = *rule == '+';
	return taken;
}

static uint32_t who_wants(const struct relay_trace_event *event)
{
	uint32_t bits = 0;
	for (unsigned slot = 0; slot < RELAY_N_TRACINGS; slot++) {
		const struct relay_trace *trace = &all.traces[slot];
		if (trace->id && trace->is_started && takes_us(trace) && takes_event(trace, event))
			bits |= 1u << slot;
	}
	return event->id ? bits : 0;
}

/* --- what the program sees --- */

/* Of what `wanted` of an event is decided now. That of a control file in which nothing has changed yet is 0, at which events are
 * wanted by nobody. */
static uint64_t generation_now(void)
{
	return all.traces[RELAY_EARLY].id && all.generation < BEFORE_ANY ? BEFORE_ANY : all.generation;
}

static void remember(struct relay_trace_event *event, void *arg)
{
	uint64_t *wanted = arg, now = generation_now() | who_wants(event);
	*wanted |= now;
	if (!relay_joined_has_retired())
		__atomic_store_n(&event->wanted, now, __ATOMIC_RELAXED);
}

static void forget(struct relay_trace_event *event, void *unused)
{
	(void)unused;
	__atomic_store_n(&event->wanted, 0, __ATOMIC_RELAXED);
}

/* Have each event find out anew who wants it. */
static void forget_wanted(void)
{
	uint64_t unused = 0;
	/* Threads that make no system calls cannot find out. */
	relay_objects_each_event(relay_joined_is_silent() ? remember : forget, &unused);
}

/* Of the pages while events wait for their trace; 0: none do. */
static uint64_t waiting_generation(void)
{
	return all.traces[RELAY_EARLY].id ? generation_now() : 0;
}

static void show_all(void)
{
	relay_objects_show(all.control, waiting_generation());
	forget_wanted();
}

/* --- traces come and go --- */

/* It may be another server that has changed the control file. */
static void renew_all(void)
{
	for (unsigned slot = 0; slot < RELAY_N_TRACES; slot++) {
		const struct relay_trace *trace = &all.traces[slot];
		struct relay_tracing *tracing = relay_joined_at(slot);
		if (tracing && tracing->id == trace->id && !relay_tracing_renew(tracing, &all.home, trace))
			relay_joined_leave(slot);
	}
}

/* Is the trace there that early events wait for? */
static void look_for_early(void)
{
	for (unsigned slot = 0; all.traces[RELAY_EARLY].id && slot < RELAY_N_TRACES; slot++)
		if (all.traces[slot].id && strcmp(all.traces[slot].name, all.traces[RELAY_EARLY].name) == 0) {
			relay_joined_end_early(&all.home, all.control, slot, &all.traces[slot]);
			all.traces[RELAY_EARLY].id = 0;
		}
	show_all();
}

/* An event that no trace's sub-buffers hold is not worth the memory to make it in. */
static void note_largest(void)
{
	uint64_t largest = 0;
	for (unsigned slot = 0; slot < RELAY_N_TRACINGS; slot++)
		if (all.traces[slot].id && all.traces[slot].subbuf_size > largest)
			largest = all.traces[slot].subbuf_size;
	/* Relaxed: a number only, with which relay_traced_holds() compares. */
	__atomic_store_n(&largest_subbuf, largest, __ATOMIC_RELAXED);
}

/* Copy the control file, if it has changed. */
static void look(void)
{
	uint64_t generation;
	bool is_early = all.traces[RELAY_EARLY].id;
	/* Acquire: what the server changed before it. */
	while (all.control && (generation = __atomic_load_n(&relay_traces_page(all.control)->generation,
	                                                    __ATOMIC_ACQUIRE)) != all.generation) {
		for (unsigned slot = 0; slot < RELAY_N_TRACES; slot++)
			if (relay_traces_get(all.control, slot, &all.traces[slot]))
				all.traces[slot].id = 0;
		all.generation = generation;
		renew_all();
		relay_joined_declare_again();
		if (is_early)
			look_for_early();
	}
	for (unsigned slot = 0; slot < RELAY_N_TRACES; slot++)
		if (relay_joined_at(slot) && relay_joined_at(slot)->id != all.traces[slot].id)
			relay_joined_leave(slot);
	relay_trace_free_retired();
	note_largest();
}

/* What this process has of the trace in a slot, or can have of it now; NULL: nothing. */
static struct relay_tracing *join(unsigned slot, size_t length)
{
	const struct relay_trace *trace = &all.traces[slot];
	if (relay_joined_at(slot) || !trace->id || !trace->is_started)
		return relay_joined_at(slot);
	return relay_joined_join(&all.home, all.control, slot, trace, length);
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
	look();
}

uint64_t relay_traced_decide(struct relay_trace_event *event)
{
	look();
	uint64_t wanted = generation_now() | who_wants(event);
	/* Relaxed: an older answer is found out by its generation. While something is to be freed the next event looks again. */
	if (!relay_joined_has_retired())
		__atomic_store_n(&event->wanted, wanted, __ATOMIC_RELAXED);
	return wanted;
}

struct relay_tracing *relay_traced_at(unsigned slot, size_t length)
{
	look();
	return join(slot, length);
}

void relay_traced_prepare(void)
{
	uint64_t wanted = 0;
	look();
	relay_joined_silence();
	relay_objects_each_event(remember, &wanted);
	for (unsigned slot = 0; slot < RELAY_N_TRACINGS; slot++)
		if ((uint32_t)wanted & 1u << slot)
			join(slot, 0);
}

/* --- for the program's objects --- */

static bool waits(void)
{
	return !all.control || all.traces[RELAY_EARLY].id;
}

/* The traces of this control file are ours, from now on. */
static void connect(const struct relay_trace_home *home, struct relay_traces *control)
{
	struct relay_trace_home old_home = all.home;
	struct relay_traces *old = all.control;
	all.home = *home;
	all.control = control;
	all.generation = NO_GENERATION;
	look();
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
	/* A filter may take the one and not the other. */
	forget_wanted();
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

/* --- for the thread that waits for a mount --- */

/* Leave the traces of a store that is no longer ours to look at. */
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
		look();
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
