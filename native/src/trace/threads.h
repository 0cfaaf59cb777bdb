/* SPDX-License-Identifier: MIT */
/*
 * Which threads are writing an event, so that memory which they may be using is freed only when they have left; and the
 * lock for everything but writing.
 *
 *     a thread that writes                        a thread that retires memory
 *
 *     relay_trace_enter(): inside++               pointer = NULL
 *     load the pointer; if it is not NULL,        relay_trace_retire(): membarrier(2); load each thread's `inside`
 *       use the memory                            relay_trace_free_retired(): load each `inside` again; free the memory
 *     relay_trace_leave(): inside--; and            once each thread that was inside has left since
 *       passed++ if it is 0 then
 *
 * The store to `inside` and the load of the pointer in the thread that writes are plain instructions without a fence
 * between them. The membarrier(2) orders them, as well as the store of NULL before the load of `inside`: either the
 * thread that writes loads NULL, or relay_trace_retire() finds it inside.
 */
#ifndef RELAYFS_TRACE_THREADS_H
#define RELAYFS_TRACE_THREADS_H

#include <relayfs/inline/event.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

/* To be called once, before the other functions. false: no pthread key is left. */
bool relay_trace_begin_threads(void);

/* To be called once, before a thread writes an event: relay_tracings, for what is compiled into programs. */
void relay_trace_show_tracings(struct relay_inline_tracing *const *all);

/* Add the calling thread to the list of threads, unless it is in it, and find out its id, and if it is quiet. */
void relay_trace_know_thread(void);

/* The calling thread begins to write an event: memory to which it loads a pointer now is not freed until it calls
 * relay_trace_leave(). Calls may nest. */
static inline void relay_trace_enter(void)
{
	if (__builtin_expect(!relay_trace_self.is_plain[RELAY_INLINE_VERSION], 0))
		relay_trace_know_thread();
	relay_trace_enter_known();
}

/* Memory to be freed, to which no thread can load a pointer any more, but which some may be using. */
struct relay_retired {
	void (*free)(void *arg);
	void *arg;
	struct relay_retired *next;
};

/* Have relay_trace_free_retired() call free(arg) when all threads that are inside now have left. The calling thread may
 * be inside once itself, which does not count. On a kernel without membarrier(2) the memory is never freed, unless only
 * one thread writes. `retired` is part of the memory. The caller holds relay_trace_lock(). */
void relay_trace_retire(struct relay_retired *retired, void (*free)(void *arg), void *arg);
/* True if memory that was retired with this function is not freed yet. The caller holds relay_trace_lock(). */
bool relay_trace_has_retired(void (*free)(void *arg));
/* Free all retired memory, unless a thread may still be using some of it. The caller holds relay_trace_lock(). */
void relay_trace_free_retired(void);

/* In the child of fork(), where only the calling thread exists, with another id: forget the other threads, and release the
 * locks. */
void relay_trace_forget_threads(void);

/* The lock of trace/ for everything but writing events. It blocks all signals, because a signal handler that writes an
 * event may need the lock, which its own thread would hold. `before` receives the previous signal mask. */
void relay_trace_lock(sigset_t *before);
void relay_trace_unlock(const sigset_t *before);

/* Call run(arg) with the lock, on the library's own stack (base/stack.h), because paths and declarations need more
 * stack than a thread may have. Leaves errno unchanged. */
void relay_trace_locked(void (*run)(void *arg), void *arg);

#endif
