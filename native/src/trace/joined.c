/* SPDX-License-Identifier: MIT */
/*
 * relay_tracings[] lies in memory that the kernel clears in a child (MADV_WIPEONFORK): a child never writes into its parent's
 * buffers.
 */
#define _GNU_SOURCE
#include "trace/joined.h"

#include "base/clock.h"
#include "trace/control_file.h"
#include "trace/early.h"
#include "trace/objects.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { RETRY_MS = 100 };

struct relay_tracing **relay_tracings;
static struct relay_tracing *joined[RELAY_N_TRACINGS]; /* the same, for a child of fork() */
static bool is_silent;

/* Traces that could not be joined: when to try again, CLOCK_MONOTONIC, and what was lost meanwhile. */
static struct {
	uint64_t id;
	int64_t again_ms;
	uint64_t lost_records, lost_bytes;
	uint64_t n_noted; /* of the records, those that relay_traces_note_lost() has taken */
} failed[RELAY_N_TRACINGS];

static void set(unsigned slot, struct relay_tracing *tracing)
{
	joined[slot] = tracing;
	/* Pairs with the acquire in emit(): all of it before the pointer. */
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
	set(slot, NULL);
	if (relay_tracings[RELAY_EARLY] == tracing)
		set(RELAY_EARLY, NULL);
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
		if (joined[slot])
			relay_tracing_declare_again(joined[slot], declare_all);
}

/* --- joining --- */

/* What was lost while there were no buffers stands in the first of them, which nobody else writes yet. Buffers of several
 * processes are written by others, so there it stays where note_failed() has put it. */
static void say_lost(struct relay_traces *control, unsigned slot, struct relay_tracing *tracing)
{
	struct relay_latch *lost = &tracing->chan->bufs[0].control->lost_full;
	if (tracing->pid == 0 && failed[slot].id == tracing->id) {
		*lost = (struct relay_latch){failed[slot].lost_records, {failed[slot].lost_bytes, 0}, 0};
		relay_traces_note_lost(control, slot, tracing->id, 0 - failed[slot].n_noted);
	}
	failed[slot].id = 0;
}

static void note_failed(struct relay_traces *control, unsigned slot, uint64_t id, size_t length)
{
	if (failed[slot].id != id)
		memset(&failed[slot], 0, sizeof(failed[slot]));
	failed[slot].id = id;
	failed[slot].lost_records++;
	failed[slot].lost_bytes += length;
	/* Perhaps there will never be a buffer to say so. */
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
			note_failed(control, slot, trace->id, length);
		if (is_time)
			failed[slot].again_ms = now + RETRY_MS;
		return NULL;
	}
	say_lost(control, slot, tracing);
	if (is_silent)
		relay_tracing_silence(tracing);
	declare_all(tracing);
	set(slot, tracing);
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

/* --- early events --- */

/* Do early events lie in the store of our traces? */
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
	/* Who is about to write to it still finds it in its old place. */
	if (is_early_in(home->store) && !joined[slot] && relay_tracing_move(tracing, home->store, trace)) {
		joined[RELAY_EARLY] = NULL;
		set(slot, tracing);
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
	/* Without its channel, cpu. */
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
	return true;
}

void relay_joined_begin_child(void)
{
	for (unsigned slot = 0; slot < RELAY_N_TRACINGS; slot++)
		if (joined[slot])
			relay_joined_leave(slot);
	relay_trace_free_retired();
	memset(failed, 0, sizeof(failed)); /* the parent says it itself */
}
