/* SPDX-License-Identifier: MIT */
/*
 * The traces of this process: a copy of the control file, which events each of them wants, and the buffers that this process has
 * in each.
 *
 * tracings[] lies in memory that the kernel clears in a child (MADV_WIPEONFORK): a child never writes into its parent's buffers.
 */
#define _GNU_SOURCE
#include "trace/process.h"

#include "base/clock.h"
#include "base/quiet.h"
#include "buffer/subbuf_start.h"
#include "trace/control_file.h"
#include "trace/declared.h"
#include "trace/early.h"
#include "trace/threads.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { RETRY_MS = 100 };

/* The generation of a page before there is a control file. */
#define BEFORE_ANY (1ull << 32)
/* No control file has it: its lower half is 0 in all of them. */
#define NO_GENERATION 1ull

union relay_traced_page relay_traced_own
    __attribute__((aligned(RELAY_TRACE_PAGE_BYTES))) = {.page = {.log = RELAY_TRACED_NOT_BEGUN}};
struct relay_tracing **relay_tracings;

/* Of the traces that look() found. Writer: note_largest(), under relay_trace_lock(). */
static uint64_t largest_subbuf;

/* Under relay_trace_lock(). */
static struct {
	bool is_on, is_prepared; /* prepared: some threads make no system calls when they write */
	struct relay_trace_object *objects;
	struct relay_declared *declared;
	struct relay_trace_home home;
	struct relay_traces *control;                 /* NULL: not connected */
	uint64_t generation;                          /* of `traces` */
	struct relay_trace traces[RELAY_N_TRACINGS];  /* a copy; id 0: there is none. RELAY_EARLY: see trace/early.h */
	struct relay_tracing *open[RELAY_N_TRACINGS]; /* as in tracings[], for a child of fork() */
	struct relay_tracing *leaving;                /* taken out, perhaps still written to */
	/* Traces that could not be joined: when to try again, CLOCK_MONOTONIC, and what was lost meanwhile. */
	struct {
		uint64_t id;
		int64_t again_ms;
		uint64_t lost_records, lost_bytes;
		uint64_t n_noted; /* of the records, those that relay_traces_note_lost() has taken */
	} failed[RELAY_N_TRACINGS];
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

static void for_each_event(void (*act)(struct relay_trace_event *event, void *arg), void *arg)
{
	for (struct relay_trace_object *object = all.objects; object; object = object->next)
		for (struct relay_trace_event *const *event = object->events; event < object->events_end; event++)
			if (*event)
				act(*event, arg);
	for (struct relay_declared *declared = all.declared; declared; declared = declared->next)
		act(&declared->event, arg);
}

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
	if (!all.leaving)
		__atomic_store_n(&event->wanted, now, __ATOMIC_RELAXED);
}

/* Let it see the control file's first page where its own was. If that fails it stays as it is: nobody traces. */
static void map_page(struct relay_trace_page *page)
{
	/* A size of 0 maps the same pages once more: without a descriptor, and without asking a server. */
	mremap(relay_traces_page(all.control), 0, (size_t)sysconf(_SC_PAGESIZE), MREMAP_MAYMOVE | MREMAP_FIXED, page);
}

/* While events wait for their trace, the page is the object's own, in which all of them are wanted; the thread of trace/wait.c
 * brings it up to date. Relaxed: the generation, which comes last, is what others follow. */
static void copy_page(struct relay_trace_page *page)
{
	const struct relay_trace_page *from = all.control ? relay_traces_page(all.control) : NULL;
	uint32_t active = from ? __atomic_load_n(&from->active, __ATOMIC_RELAXED) : 0;
	__atomic_store_n(&page->log, from ? __atomic_load_n(&from->log, __ATOMIC_RELAXED) : 0, __ATOMIC_RELAXED);
	__atomic_store_n(&page->active, active | 1u << RELAY_EARLY, __ATOMIC_RELAXED);
	/* Pairs with the acquire in emit(), trace/tracepoint.c. */
	__atomic_store_n(&page->generation, generation_now(), __ATOMIC_RELEASE);
}

static void show_page(struct relay_trace_page *page)
{
	if (all.traces[RELAY_EARLY].id)
		copy_page(page);
	else if (all.control)
		map_page(page);
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
	for_each_event(all.is_prepared ? remember : forget, &unused);
}

static void show_all(void)
{
	show_page(&relay_traced_own.page);
	for (struct relay_trace_object *object = all.objects; object; object = object->next)
		show_page(object->page);
	forget_wanted();
}

/* --- tracings come and go --- */

static void set(unsigned slot, struct relay_tracing *tracing)
{
	all.open[slot] = tracing;
	/* Pairs with the acquire in emit(): all of it before the pointer. */
	__atomic_store_n(&relay_tracings[slot], tracing, __ATOMIC_RELEASE);
}

static void close_leaving(void)
{
	for (struct relay_tracing *next; all.leaving; all.leaving = next) {
		next = all.leaving->next;
		relay_tracing_close(all.leaving);
	}
}

static void free_left_tracings(void)
{
	if (all.leaving && relay_trace_all_left())
		close_leaving();
}

static void take_out(unsigned slot)
{
	struct relay_tracing *tracing = all.open[slot];
	set(slot, NULL);
	if (relay_tracings[RELAY_EARLY] == tracing)
		set(RELAY_EARLY, NULL);
	tracing->next = all.leaving;
	all.leaving = tracing;
}

/* It may be another server that has changed the control file. */
static void renew_all(void)
{
	for (unsigned slot = 0; slot < RELAY_N_TRACES; slot++) {
		const struct relay_trace *trace = &all.traces[slot];
		struct relay_tracing *tracing = all.open[slot];
		if (tracing && tracing->id == trace->id && !relay_tracing_renew(tracing, &all.home, trace))
			take_out(slot);
	}
}

/* Do early events lie in the store of our traces? */
static bool is_early_at_home(void)
{
	const char *root = all.open[RELAY_EARLY]->chan->place.root, *store = all.home.store;
	size_t length = store ? strlen(store) : 0;
	return store && strncmp(root, store, length) == 0 && strcmp(root + length, "/.early") == 0;
}

/* The trace that early events wait for is there, in this slot: what has waited goes on as part of it. */
static void end_early(unsigned slot)
{
	const struct relay_trace *trace = &all.traces[slot];
	struct relay_tracing *tracing = all.open[RELAY_EARLY];
	if (all.failed[RELAY_EARLY].id) {
		all.failed[slot] = all.failed[RELAY_EARLY];
		all.failed[slot].id = trace->id;
		all.failed[slot].again_ms = 0;
		if (relay_traces_note_lost(all.control, slot, trace->id, all.failed[slot].lost_records))
			all.failed[slot].n_noted = all.failed[slot].lost_records;
	}
	all.traces[RELAY_EARLY].id = 0;
	if (!tracing)
		return;
	/* Who is about to write to it still finds it in its old place. */
	if (is_early_at_home() && !all.open[slot] && relay_tracing_move(tracing, all.home.store, trace)) {
		all.open[RELAY_EARLY] = NULL;
		set(slot, tracing);
	} else {
		take_out(RELAY_EARLY);
	}
}

/* Is the trace there that early events wait for? */
static void look_for_early(void)
{
	for (unsigned slot = 0; all.traces[RELAY_EARLY].id && slot < RELAY_N_TRACES; slot++)
		if (all.traces[slot].id && strcmp(all.traces[slot].name, all.traces[RELAY_EARLY].name) == 0)
			end_early(slot);
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

static void declare(struct relay_trace_event *event, void *tracing)
{
	if (event->id)
		relay_tracing_declare(tracing, event);
}

static void declare_all(struct relay_tracing *tracing)
{
	for_each_event(declare, tracing);
}

/* There may be room for declarations by now. */
static void declare_again(void)
{
	for (unsigned slot = 0; slot < RELAY_N_TRACINGS; slot++)
		if (all.open[slot])
			relay_tracing_declare_again(all.open[slot], declare_all);
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
		declare_again();
		if (is_early)
			look_for_early();
	}
	const struct relay_tracing *left_before = all.leaving;
	for (unsigned slot = 0; slot < RELAY_N_TRACES; slot++)
		if (all.open[slot] && all.open[slot]->id != all.traces[slot].id)
			take_out(slot);
	if (all.leaving != left_before && !relay_trace_await_all())
		all.leaving = NULL;
	free_left_tracings();
	note_largest();
}

/* What was lost while there were no buffers stands in the first of them, which nobody else writes yet. Buffers of several
 * processes are written by others, so there it stays where note_failed() has put it. */
static void say_lost(unsigned slot, struct relay_tracing *tracing)
{
	struct relay_latch *lost = &tracing->chan->bufs[0].control->lost_full;
	if (tracing->pid == 0 && all.failed[slot].id == tracing->id) {
		*lost = (struct relay_latch){all.failed[slot].lost_records, {all.failed[slot].lost_bytes, 0}, 0};
		relay_traces_note_lost(all.control, slot, tracing->id, 0 - all.failed[slot].n_noted);
	}
	all.failed[slot].id = 0;
}

static void note_failed(unsigned slot, uint64_t id, size_t length)
{
	if (all.failed[slot].id != id)
		memset(&all.failed[slot], 0, sizeof(all.failed[slot]));
	all.failed[slot].id = id;
	all.failed[slot].lost_records++;
	all.failed[slot].lost_bytes += length;
	/* Perhaps there will never be a buffer to say so. */
	if (relay_traces_note_lost(all.control, slot, id, 1))
		all.failed[slot].n_noted++;
}

/* --- memory --- */

struct allocation {
	struct rchan_buf *buf;
	bool is_done;
};

static int64_t now_ms(void)
{
	return relay_clock_ns(CLOCK_MONOTONIC_COARSE) / 1000000;
}

static void allocate_here(void *arg)
{
	struct allocation *allocation = arg;
	struct rchan_buf *buf = allocation->buf;
	/* Another thread may have tried meanwhile. */
	if (relay_is_unallocated(buf) && now_ms() < buf->allocate_again_ms)
		return;
	allocation->is_done = relay_tracing_allocate(relay_private(buf->chan), buf) == 0;
	if (!allocation->is_done)
		/* Relaxed, as in allocate(): it only says when to try. */
		__atomic_store_n(&buf->allocate_again_ms, now_ms() + RETRY_MS, __ATOMIC_RELAXED);
}

/* Of a thread that is about to write the first event to a buffer. */
static bool allocate(struct rchan_buf *buf)
{
	struct allocation allocation = {buf, false};
	if (relay_is_quiet() && !relay_quiet_may_call())
		return false;
	if (now_ms() >= __atomic_load_n(&buf->allocate_again_ms, __ATOMIC_RELAXED))
		relay_trace_locked(allocate_here, &allocation);
	return allocation.is_done;
}

/* Threads that make no system calls find all memory there. What cannot be had now is lost, and counted, as they write. */
static void allocate_all(struct relay_tracing *tracing)
{
	for (uint32_t i = 0; i < tracing->chan->n_buffers; i++)
		relay_tracing_allocate(tracing, &tracing->chan->bufs[i]);
}

static void silence(struct relay_tracing *tracing)
{
	allocate_all(tracing);
	relay_tracing_silence(tracing);
}

static struct relay_tracing *open_early(void)
{
	const struct relay_trace *trace = &all.traces[RELAY_EARLY];
	struct relay_trace_home early;
	if (relay_early_home(&all.home, trace, &early))
		return NULL;
	struct relay_tracing *tracing = relay_tracing_open(&early, trace);
	relay_trace_home_free(&early);
	return tracing;
}

/* Join the trace, under the lock. NULL: it cannot be done now. */
static struct relay_tracing *join_trace(unsigned slot, size_t length)
{
	const struct relay_trace *trace = &all.traces[slot];
	if (!trace->id || !trace->is_started)
		return NULL;
	int64_t now = now_ms();
	bool is_time = all.failed[slot].id != trace->id || now >= all.failed[slot].again_ms;
	struct relay_tracing *tracing = !is_time              ? NULL
	                                : slot == RELAY_EARLY ? open_early()
	                                                      : relay_tracing_open(&all.home, trace);
	if (!tracing) {
		if (length)
			note_failed(slot, trace->id, length);
		if (is_time)
			all.failed[slot].again_ms = now + RETRY_MS;
		return NULL;
	}
	say_lost(slot, tracing);
	for (uint32_t i = 0; i < tracing->chan->n_buffers; i++)
		tracing->chan->bufs[i].allocate = allocate;
	if (all.is_prepared)
		silence(tracing);
	declare_all(tracing);
	set(slot, tracing);
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
	look();
}

uint64_t relay_traced_decide(struct relay_trace_event *event)
{
	look();
	uint64_t wanted = generation_now() | who_wants(event);
	/* Relaxed: an older answer is found out by its generation. While something is to be freed the next event looks again. */
	if (!all.leaving)
		__atomic_store_n(&event->wanted, wanted, __ATOMIC_RELAXED);
	return wanted;
}

struct relay_tracing *relay_traced_at(unsigned slot, size_t length)
{
	look();
	return all.open[slot] ? all.open[slot] : join_trace(slot, length);
}

void relay_traced_prepare(void)
{
	uint64_t wanted = 0;
	look();
	all.is_prepared = true;
	for_each_event(remember, &wanted);
	for (unsigned slot = 0; slot < RELAY_N_TRACINGS; slot++)
		if (all.open[slot])
			silence(all.open[slot]);
		else if ((uint32_t)wanted & 1u << slot)
			join_trace(slot, 0);
}

/* --- for the program's objects --- */

static bool make_places(void)
{
	size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
	void *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (page == MAP_FAILED)
		return false;
	if (madvise(page, bytes, MADV_WIPEONFORK)) {
		munmap(page, bytes);
		return false;
	}
	relay_tracings = page;
	return true;
}

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
	all.is_on = make_places();
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
	for (unsigned slot = 0; slot < RELAY_N_TRACINGS; slot++)
		if (all.open[slot])
			take_out(slot);
	close_leaving();
	/* A filter may take the one and not the other; and what the parent lost it says itself. */
	forget_wanted();
	memset(all.failed, 0, sizeof(all.failed));
	if (!all.is_on || !waits())
		return false;
	show_all();
	return true;
}

void relay_traced_add(struct relay_trace_object *object)
{
	object->next = all.objects;
	all.objects = object;
	if (all.is_on)
		show_page(object->page);
}

void relay_traced_remove(struct relay_trace_object *object)
{
	struct relay_trace_object **at = &all.objects;
	while (*at && *at != object)
		at = &(*at)->next;
	if (*at)
		*at = object->next;
}

void relay_traced_declare(const struct relay_trace_event *event)
{
	for (unsigned slot = 0; slot < RELAY_N_TRACINGS; slot++)
		if (all.open[slot])
			relay_tracing_declare(all.open[slot], event);
}

void relay_traced_add_declared(struct relay_declared *declared)
{
	declared->next = all.declared;
	all.declared = declared;
	relay_traced_declare(&declared->event);
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

/* The directory of early events, "STORE/.early/NAME/PROCESS-PID"; NULL: no memory. */
static char *directory_of(const struct relay_tracing *tracing)
{
	const struct relay_place *place = &tracing->chan->place;
	char *dir;
	if (asprintf(&dir, "%s/%s", place->root, place->channel) < 0)
		return NULL;
	*strrchr(dir, '/') = 0; /* its channel, cpu */
	return dir;
}

/* Leave the traces of a store that is no longer ours to look at. Early events are left in a store only for another one of this
 * user's; then *carried is where they are. */
static void leave_store(const struct relay_trace_home *home, char **carried)
{
	for (unsigned slot = 0; slot < RELAY_N_TRACES; slot++) {
		if (all.open[slot])
			take_out(slot);
		all.traces[slot].id = 0;
	}
	struct relay_trace_home old = all.home;
	all.home = *home;
	if (all.open[RELAY_EARLY] && home->store && !is_early_at_home()) {
		*carried = directory_of(all.open[RELAY_EARLY]);
		take_out(RELAY_EARLY);
	}
	all.home = old;
	if (all.leaving && !relay_trace_await_all())
		all.leaving = NULL;
}

void relay_traced_connect(const struct relay_trace_home *home, struct relay_traces *control, char **carried)
{
	sigset_t before;
	*carried = NULL;
	relay_trace_lock(&before);
	leave_store(home, carried);
	connect(home, control);
	relay_trace_unlock(&before);
}

bool relay_traced_has_left(void)
{
	sigset_t before;
	relay_trace_lock(&before);
	free_left_tracings();
	bool has_left = !all.leaving;
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
