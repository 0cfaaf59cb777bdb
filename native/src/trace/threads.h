/* SPDX-License-Identifier: MIT */
/*
 * Who is writing an event: what is taken away under a writer's eyes is freed when all who were inside have left.
 *
 *     writer                                        who takes away
 *     inside++                                      pointer = NULL
 *     pointer? write                                fence all threads of this process (membarrier(2))
 *     inside--; the last one out: passed++          who is inside?   ... they have passed since: free
 *
 * The writer's two steps, the store of `inside` and the load of the pointer, are plain and without a fence. The fence stands between
 * the other's store of NULL and its load of `inside`, and orders the writer's two steps, too: either the writer sees the NULL, or the
 * other sees it inside. The store by which a writer leaves is a release, which pairs with the acquire of who frees.
 */
#ifndef RELAYFS_TRACE_THREADS_H
#define RELAYFS_TRACE_THREADS_H

#include "base/libc.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

/* The parts of relay_trace_thread.inside. */
enum { RELAY_TRACE_NESTED = 0xffff, RELAY_TRACE_PASSED = 0x10000 };

struct relay_trace_thread {
	uint32_t
	    inside; /* nested as often: a signal handler may write, too; how often it has left. Writer: the thread */
	uint32_t awaited; /* `inside` when something was last retired; 0: it was not inside. Under a lock */
	bool is_known;
	bool is_plain; /* known, and not quiet (base/quiet.h) */
	struct relay_trace_thread *next, *previous;
};

extern __thread struct relay_trace_thread relay_trace_self RELAY_TLS;

/* Once, before any other of these. false: no key is left for what is to be done at a thread's end. */
bool relay_trace_begin_threads(void);

void relay_trace_know_thread(void);

static inline void relay_trace_enter_known(void)
{
	__atomic_store_n(&relay_trace_self.inside, relay_trace_self.inside + 1, __ATOMIC_RELAXED);
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
}

static inline void relay_trace_enter(void)
{
	if (__builtin_expect(!relay_trace_self.is_plain, 0))
		relay_trace_know_thread();
	relay_trace_enter_known();
}

static inline void relay_trace_leave(void)
{
	uint32_t inside = relay_trace_self.inside - 1;
	/* Release: all of the write comes before. */
	__atomic_store_n(&relay_trace_self.inside, inside & RELAY_TRACE_NESTED ? inside : inside + RELAY_TRACE_PASSED,
	                 __ATOMIC_RELEASE);
}

/* Something that no thread finds any more, but that some may be using. */
struct relay_retired {
	void (*free)(void *arg);
	void *arg;
	struct relay_retired *next;
};

/* Have relay_trace_free_retired() call free(arg) once all threads have left that are inside now; a caller that is inside once itself
 * does not count. It stays for good where that cannot be known, because the kernel has no membarrier(2). Under relay_trace_lock(). */
void relay_trace_retire(struct relay_retired *retired, void (*free)(void *arg), void *arg);
/* True if something that this function frees is not freed yet. */
bool relay_trace_has_retired(void (*free)(void *arg));
void relay_trace_free_retired(void);

/* In the child of a fork() there is this thread only. */
void relay_trace_forget_threads(void);

/* The lock under which all that is not writing is done, with signals blocked: a handler that writes must not find
 * its own thread in there. */
void relay_trace_lock(sigset_t *before);
void relay_trace_unlock(const sigset_t *before);

/* Run something under it, on the library's stack: paths and declarations need more of one than a thread may have. errno stays. */
void relay_trace_locked(void (*run)(void *arg), void *arg);

#endif
