/* SPDX-License-Identifier: MIT */
/*
 * relay_tracings[] is in memory that the kernel clears in the child of fork() (MADV_WIPEONFORK), so that a child never
 * writes to its parent's buffers. joined[] has the same pointers and is not cleared, so that the child can free what
 * they point to.
 *
 * Events that a process cannot write because it cannot join their trace are counted in the page of trace/lost.c, and in
 * failed[]; when the trace is joined, the count moves into the first buffer.
 */
#define _GNU_SOURCE
#include "trace/joined.h"

#include "base/clock.h"
#include "buffer/subbuf_start.h"
#include "trace/control_file.h"
#include "trace/early.h"
#include "trace/objects.h"
#include "trace/process_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { RETRY_MS = 100 }; /* after a trace could not be joined */

struct relay_tracing **relay_tracings;
static struct relay_tracing *joined[RELAY_N_TRACINGS];
static bool is_silent;

/* For each slot, the trace that could not be joined. */
static struct {
	uint64_t id;      /* 0: none */
	int64_t again_ms; /* CLOCK_MONOTONIC, when to try again */
	uint64_t lost_records, lost_bytes;
	uint64_t n_noted; /* how many of the records relay_traces_note_lost() has counted */
} failed[RELAY_N_TRACINGS];

static void set_tracing(unsigned slot, struct relay_tracing *tracing)
{
	joined[slot] = tracing;
	/* Pairs with the acquire in emit(), trace/tracepoint.c: the struct's members before the pointer. */
	__atomic_store_n(&relay_tracings[slot], tracing, __ATOMIC_RELEASE);
}

struct relay_tracing *relay_joined_at(unsigned slot)
{
	return joined[slot];
}

static void close_tracing(void *tracing)
{
	relay_tracing_close(tracing);
}

void relay_joined_leave(unsigned slot)
{
	struct relay_tracing *tracing = joined[slot];
	set_tracing(slot, NULL);
	if (relay_tracings[RELAY_EARLY] == tracing)
		set_tracing(RELAY_EARLY, NULL);
	relay_trace_retire(&tracing->retired, close_tracing, tracing);
}

bool relay_joined_has_retired(void)
{
	return relay_trace_has_retired(close_tracing);
}

/* --- declarations --- */

void relay_joined_declare(const struct relay_trace_event *event)
{
	for (unsigned slot = 0; slot < RELAY_N_TRACINGS; slot++)
		if (joined[slot])
			relay_tracing_declare(joined[slot], event);
}

static void declare(struct relay_trace_event *event, void *tracing)
{
	if (event->id)
		relay_tracing_declare(tracing, event);
}

static void declare_all(struct relay_tracing *tracing)
{
	relay_objects_each_event(declare, tracing);
}

void relay_joined_declare_again(void)
{
	for (unsigned slot = 0; slot < RELAY_N_TRACINGS; slot++)
		if (joined[slot]) {
			relay_tracing_put_objects(joined[slot]);
			relay_tracing_declare_again(joined[slot], declare_all);
		}
}

/* --- what is loaded --- */

bool relay_joined_any(void)
{
	for (unsigned slot = 0; relay_tracings && slot < RELAY_N_TRACINGS; slot++)
		/* Relaxed: it only decides whether to look what was loaded. */
		if (__atomic_load_n(&relay_tracings[slot], __ATOMIC_RELAXED))
			return true;
	return false;
}

void relay_joined_put_objects(void)
{
	for (unsigned slot = 0; slot < RELAY_N_TRACINGS; slot++)
		if (joined[slot])
			relay_tracing_put_objects(joined[slot]);
}

/* --- joining --- */

/* Move the count of events that were lost before the trace was joined from the page of trace/lost.c to the first
 * buffer, which no thread writes yet. If several processes write to the buffers, others may be writing, so the count
 * stays in the page. */
static void move_lost(struct relay_traces *control, unsigned slot, struct relay_tracing *tracing)
{
	struct relay_latch *lost = &tracing->chan->bufs[0].control->lost_full;
	if (tracing->pid == 0 && failed[slot].id == tracing->id) {
		*lost = (struct relay_latch){failed[slot].lost_records, {failed[slot].lost_bytes, 0}, 0};
		relay_traces_note_lost(control, slot, tracing->id, 0 - failed[slot].n_noted);
	}
	failed[slot].id = 0;
}

/* Count an event that is lost because its trace cannot be joined. */
static void count_not_joined(struct relay_traces *control, unsigned slot, uint64_t id, size_t length)
{
	if (failed[slot].id != id)
		memset(&failed[slot], 0, sizeof(failed[slot]));
	failed[slot].id = id;
	failed[slot].lost_records++;
	failed[slot].lost_bytes += length;
	/* At once, because this process may end before it gets a buffer for the count. */
	if (relay_traces_note_lost(control, slot, id, 1))
		failed[slot].n_noted++;
}

static struct relay_tracing *open_early(const struct relay_trace_home *home, const struct relay_trace *trace)
{
	struct relay_trace_home early;
	if (relay_early_home(home, trace, &early))
		return NULL;
	struct relay_tracing *tracing = relay_tracing_open(&early, trace);
	relay_trace_home_free(&early);
	return tracing;
}

struct relay_tracing *relay_joined_join(const struct relay_trace_home *home, struct relay_traces *control,
                                        unsigned slot, const struct relay_trace *trace, size_t length)
{
	int64_t now = relay_clock_ns(CLOCK_MONOTONIC_COARSE) / 1000000;
	bool is_time = failed[slot].id != trace->id || now >= failed[slot].again_ms;
	struct relay_tracing *tracing = NULL;
	if (is_time)
		tracing = slot == RELAY_EARLY ? open_early(home, trace) : relay_tracing_open(home, trace);
	if (!tracing) {
		if (length)
			count_not_joined(control, slot, trace->id, length);
		if (is_time)
			failed[slot].again_ms = now + RETRY_MS;
		return NULL;
	}
	move_lost(control, slot, tracing);
	/* Before the declarations, so that who has read one finds it. */
	relay_tracing_follow_objects(tracing);
	if (is_silent)
		relay_tracing_silence(tracing);
	declare_all(tracing);
	set_tracing(slot, tracing);
	return tracing;
}

void relay_joined_silence(void)
{
	is_silent = true;
	for (unsigned slot = 0; slot < RELAY_N_TRACINGS; slot++)
		if (joined[slot])
			relay_tracing_silence(joined[slot]);
}

bool relay_joined_is_silent(void)
{
	return is_silent;
}

void relay_joined_note_left(void)
{
	if (!relay_tracings)
		return;
	relay_trace_enter();
	for (unsigned slot = 0; slot < RELAY_N_TRACINGS; slot++) {
		/* Pairs with the release in set_tracing(). */
		struct relay_tracing *tracing = __atomic_load_n(&relay_tracings[slot], __ATOMIC_ACQUIRE);
		/* Buffers of several processes have no place for it. */
		if (tracing && !tracing->pid)
			relay_note_left(&tracing->chan->bufs[0]);
	}
	relay_trace_leave();
}

/* --- early events --- */

/* True if the early events are in this store. */
static bool is_early_in(const char *store)
{
	const char *root = joined[RELAY_EARLY]->chan->place.root;
	size_t length = store ? strlen(store) : 0;
	return store && strncmp(root, store, length) == 0 && strcmp(root + length, "/.early") == 0;
}

void relay_joined_end_early(const struct relay_trace_home *home, struct relay_traces *control, unsigned slot,
                            const struct relay_trace *trace)
{
	struct relay_tracing *tracing = joined[RELAY_EARLY];
	if (failed[RELAY_EARLY].id) {
		failed[slot] = failed[RELAY_EARLY];
		failed[slot].id = trace->id;
		failed[slot].again_ms = 0;
		if (relay_traces_note_lost(control, slot, trace->id, failed[slot].lost_records))
			failed[slot].n_noted = failed[slot].lost_records;
	}
	if (!tracing)
		return;
	/* relay_tracings[RELAY_EARLY] stays until relay_joined_leave(), for threads that decided before to write
	 * there. */
	if (is_early_in(home->store) && !joined[slot] && relay_tracing_move(tracing, home->store, trace)) {
		joined[RELAY_EARLY] = NULL;
		set_tracing(slot, tracing);
	} else {
		relay_joined_leave(RELAY_EARLY);
	}
}

char *relay_joined_carry(const struct relay_trace_home *home)
{
	if (!joined[RELAY_EARLY] || !home->store || is_early_in(home->store))
		return NULL;
	const struct relay_place *place = &joined[RELAY_EARLY]->chan->place;
	char *dir;
	/* The channel is NAME/PROCESS-PID/cpu. */
	int length = (int)(strrchr(place->channel, '/') - place->channel);
	if (asprintf(&dir, "%s/%.*s", place->root, length, place->channel) < 0)
		dir = NULL;
	relay_joined_leave(RELAY_EARLY);
	return dir;
}

/* --- the process --- */

bool relay_joined_begin(void)
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
	relay_trace_show_tracings(page);
	return true;
}

void relay_joined_begin_child(void)
{
	for (unsigned slot = 0; slot < RELAY_N_TRACINGS; slot++)
		if (joined[slot])
			relay_joined_leave(slot);
	relay_trace_free_retired();
	memset(failed, 0, sizeof(failed)); /* these events are the parent's */
}
