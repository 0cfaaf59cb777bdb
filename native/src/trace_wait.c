/* SPDX-License-Identifier: MIT */
/*
 * Before there is a mount: a thread that waits for one, and, where $RELAYFS_TRACE_EARLY names a trace, memory for what is
 * traced meanwhile.
 *
 *     mounted?  ----------------------------------------------> connect
 *        '- early: is there a trace of that name?  ---> the memory becomes part of it; connect
 */
#define _GNU_SOURCE
#include "sleep.h"
#include "traced.h"
#include "traces.h"
#include "trace_threads.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	STACK_BYTES = 128 * 1024,
	LOOK_MS = 10000, /* for what is mounted elsewhere, in a store that this process sees */
	TRACE_MS = 1000  /* for a trace */
};

static struct {
	struct relay_tracing *early; /* NULL: nothing is traced yet */
	char name[RELAY_TRACE_NAME_BYTES];
} waiting;

/* "NAME,subbuf_size=..,n_subbufs=..,mode=.." */
static void begin_early(const char *wish)
{
	char *options = strdup(wish), *further = options;
	const char *name = strsep(&further, ",");
	if (options && *name && strlen(name) < sizeof(waiting.name)) {
		strcpy(waiting.name, name);
		for (char *at = further; at && *at; at++)
			*at = *at == ',' ? ' ' : *at;
		waiting.early = relay_tracing_open_unnamed(further ? further : "");
		if (waiting.early)
			relay_traced_begin_early(waiting.early);
	}
	free(options);
}

/* The slot of the trace that early events wait for; -1: it is not there yet. */
static int find_trace(const struct relay_traces *traces, struct relay_trace *trace)
{
	for (unsigned slot = 0; slot < RELAY_N_TRACES; slot++)
		if (relay_traces_get(traces, slot, trace) == 0 && strcmp(trace->name, waiting.name) == 0)
			return (int)slot;
	return -1;
}

/* No event is declared meanwhile. */
static bool name_early(const char *store, const struct relay_trace *trace)
{
	sigset_t before;
	relay_trace_lock(&before);
	int err = relay_tracing_name(waiting.early, store, trace);
	relay_trace_unlock(&before);
	return !err;
}

/* Which slot's trace has our early events now; -1: another user serves it, who takes no memory of ours. */
static int give_early(const struct relay_trace_home *home, const struct relay_traces *traces)
{
	struct relay_trace trace;
	struct relay_trace_page *page = relay_traces_page(traces);
	while (home->store) {
		struct relay_sleep change = {&page->changes, __atomic_load_n(&page->changes, __ATOMIC_ACQUIRE)};
		int slot = find_trace(traces, &trace);
		if (slot >= 0 && name_early(home->store, &trace))
			return slot;
		relay_sleep_any(&change, 1, TRACE_MS);
	}
	return -1;
}

static bool try_to_connect(void)
{
	struct relay_trace_home home;
	struct relay_traces *traces;
	int slot = 0;
	if (!relay_trace_find(&home, &traces))
		return false;
	if (waiting.early)
		slot = give_early(&home, traces);
	/* Early events that nobody takes are given up, so that those that follow are traced. */
	relay_traced_connect(&home, traces, (unsigned)slot, slot < 0 ? NULL : waiting.early);
	waiting.early = NULL;
	return true;
}

static void *wait_for_mount(void *unused)
{
	pthread_setname_np(pthread_self(), "relayfs-trace");
	int fd = open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);
	while (!try_to_connect()) {
		/* Says that something was mounted since the last time, or since the open. */
		struct pollfd mounts = {.fd = fd, .events = POLLPRI};
		poll(&mounts, 1, LOOK_MS);
	}
	if (fd >= 0)
		close(fd);
	return unused;
}

void relay_trace_wait(void)
{
	pthread_t thread;
	pthread_attr_t attr;
	const char *wish = getenv("RELAYFS_TRACE_EARLY");
	/* In the child of a fork() it was its parent's. */
	waiting.early = NULL;
	if (wish)
		begin_early(wish);
	/* Signals are blocked, as they are here: they are for the program's threads. */
	if (pthread_attr_init(&attr))
		return;
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_create(&thread, &attr, wait_for_mount, NULL);
	pthread_attr_destroy(&attr);
}
