/* SPDX-License-Identifier: MIT */
/*
 * Who is writing an event: what is taken away under a writer's eyes may be freed when nobody is inside any more.
 *
 *     writer                                        who takes away
 *     inside++                                      pointer = NULL
 *     pointer? write                                fence all threads of this process (membarrier(2))
 *     inside--                                      nobody inside? free
 *
 * Plain stores and no fence for the writer: either it sees the NULL, or the other sees it inside.
 */
#ifndef RELAYFS_TRACE_THREADS_H
#define RELAYFS_TRACE_THREADS_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

struct relay_trace_thread {
	uint32_t inside; /* nested as often: a signal handler may write, too. Writer: the thread */
	bool is_known;
	struct relay_trace_thread *next, *previous;
};

extern __thread struct relay_trace_thread relay_trace_self __attribute__((tls_model("initial-exec")));

/* Once, before any other of these. false: no key is left for what is to be done at a thread's end. */
bool relay_trace_begin_threads(void);

void relay_trace_know_thread(void);

static inline void relay_trace_enter(void)
{
	if (__builtin_expect(!relay_trace_self.is_known, 0))
		relay_trace_know_thread();
	__atomic_store_n(&relay_trace_self.inside, relay_trace_self.inside + 1, __ATOMIC_RELAXED);
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
}

static inline void relay_trace_leave(void)
{
	/* Release: all of the write comes before. */
	__atomic_store_n(&relay_trace_self.inside, relay_trace_self.inside - 1, __ATOMIC_RELEASE);
}

/* Is nobody inside who entered before this? A caller that is inside once itself does not count. */
bool relay_trace_all_left(void);

/* In the child of a fork() there is this thread only. */
void relay_trace_forget_threads(void);

/* The lock under which all that is not writing is done, with signals blocked: a handler that writes must not find
 * its own thread in there. */
void relay_trace_lock(sigset_t *before);
void relay_trace_unlock(const sigset_t *before);

#endif
