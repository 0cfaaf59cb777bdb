/* SPDX-License-Identifier: MIT */
/*
 * A thread that waits for a mount and, where $RELAYFS_TRACE_EARLY names a trace, for that.
 *
 *     mounted?  --> connect; early events that lie in another store of this user's are copied into this one
 *        '- is there a trace of that name?  --> they are part of it; done
 */
#define _GNU_SOURCE
#include "trace/wait.h"

#include "base/futex.h"
#include "trace/early.h"
#include "trace/process.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
	STACK_BYTES = 256 * 1024,
	LOOK_MS = 10000, /* for what is mounted elsewhere, in a store that this process sees */
	TRACE_MS = 1000, /* for a trace */
	LEAVE_NS = 1000000
};

/* Copy what was written to another store; if that fails it waits there for a mount of that store. */
static void carry(const char *from, const struct relay_trace_home *home, const struct relay_trace *trace)
{
	struct relay_trace_home early;
	while (!relay_traced_has_left())
		nanosleep(&(struct timespec){.tv_nsec = LEAVE_NS}, NULL);
	if (relay_early_home(home, trace, &early))
		return;
	relay_early_carry(from, &early, trace);
	relay_trace_home_free(&early);
}

/* A mount, in the place of a store that nobody serves, or of nothing. */
static void try_to_connect(const struct relay_traced_state *state)
{
	struct relay_trace_home home;
	struct relay_traces *traces;
	char *carried;
	if (!relay_trace_find(&home, &traces))
		return;
	if (state->changes && !home.mount) {
		relay_traces_close(traces);
		relay_trace_home_free(&home);
		return;
	}
	/* The library's own from now on, which the copy outlives. */
	struct relay_trace_home to = {.store = home.store ? strdup(home.store) : NULL};
	relay_traced_connect(&home, traces, &carried);
	if (carried && to.store)
		carry(carried, &to, &state->early);
	free(carried);
	relay_trace_home_free(&to);
}

/* Returns when something may be new. */
static void wait_for_news(const struct relay_traced_state *state, int mounts)
{
	struct relay_futex change = {state->changes, state->changed};
	/* Says that something was mounted since the last time, or since the open. */
	struct pollfd mounted = {.fd = mounts, .events = POLLPRI};
	if (state->has_mount)
		relay_futex_wait_any(&change, 1, TRACE_MS);
	else
		poll(&mounted, 1, state->changes ? TRACE_MS : LOOK_MS);
}

static void *wait_for_mount(void *unused)
{
	pthread_setname_np(pthread_self(), "relayfs-trace");
	struct relay_traced_state state;
	int mounts = open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);
	while (relay_traced_waits(&state)) {
		if (!state.has_mount) {
			try_to_connect(&state);
			if (!relay_traced_waits(&state))
				break;
		}
		wait_for_news(&state, mounts);
	}
	if (mounts >= 0)
		close(mounts);
	return unused;
}

void relay_trace_wait(void)
{
	pthread_t thread;
	pthread_attr_t attr;
	/* Signals are blocked, as they are here: they are for the program's threads. */
	if (pthread_attr_init(&attr))
		return;
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_create(&thread, &attr, wait_for_mount, NULL);
	pthread_attr_destroy(&attr);
}
