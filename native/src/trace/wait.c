/* SPDX-License-Identifier: MIT */
/*
 * A thread that waits for a control file of traces and, if $RELAYFS_TRACE_EARLY names a trace, for this trace:
 *
 *     1. When a mount or a store without a mount appears, the thread connects to its control file, and copies early
 *        events that are in another store of this user into this store.
 *     2. When the trace of the early events is made, relay_traced_waits() adds them to it, and the thread ends.
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
	LOOK_MS = 10000,   /* between searches for a control file, which a server in another mount namespace may make */
	TRACE_MS = 1000,   /* between searches for the trace */
	LEAVE_NS = 1000000 /* between checks if threads are writing early events */
};

/* Copy the directory of early events `from` into the store of `home`. If that fails, it stays in its store until a
 * server of that store makes the trace. */
static void copy_early(const char *from, const struct relay_trace_home *home, const struct relay_trace *trace)
{
	struct relay_trace_home early;
	while (!relay_traced_has_left())
		nanosleep(&(struct timespec){.tv_nsec = LEAVE_NS}, NULL);
	if (relay_early_home(home, trace, &early))
		return;
	relay_early_carry(from, &early, trace);
	relay_trace_home_free(&early);
}

/* Connect to a mount; or to a store without a server, if the process is not connected to one yet. */
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
	/* A copy, because `home` then belongs to the library, which may free it while `to` is used. */
	struct relay_trace_home to = {.store = home.store ? strdup(home.store) : NULL};
	relay_traced_connect(&home, traces, &carried);
	if (carried && to.store)
		copy_early(carried, &to, &state->early);
	free(carried);
	relay_trace_home_free(&to);
}

/* Sleep until the control file or the mounts of this process may have changed. mounts: /proc/self/mountinfo. */
static void wait_for_change(const struct relay_traced_state *state, int mounts)
{
	struct relay_futex change = {state->changes, state->changed};
	/* The kernel reports POLLPRI once after each change of the mounts. */
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
		wait_for_change(&state, mounts);
	}
	if (mounts >= 0)
		close(mounts);
	return unused;
}

void relay_trace_wait(void)
{
	pthread_t thread;
	pthread_attr_t attr;
	/* The thread inherits the caller's mask of blocked signals, so signals go to the program's own threads. */
	if (pthread_attr_init(&attr))
		return;
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_create(&thread, &attr, wait_for_mount, NULL);
	pthread_attr_destroy(&attr);
}
