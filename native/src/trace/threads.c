/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "trace/threads.h"

#include "base/futex.h"
#include "base/libc.h"
#include "base/quiet.h"
#include "base/stack.h"

#include <errno.h>
#include <pthread.h>

__thread struct relay_trace_thread relay_trace_self RELAY_TLS;

static struct relay_trace_thread *threads;           /* under threads_lock */
static struct relay_inline_tracing *const *tracings; /* for programs */
static struct relay_retired *retired;                /* under lock */
static pthread_mutex_t threads_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* relay_trace_lock() */
static pthread_key_t ends;                               /* its destructor is forget_thread() */

/* Block all signals and lock the mutex. */
static void block(pthread_mutex_t *mutex, sigset_t *before)
{
	sigset_t all;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, before);
	pthread_mutex_lock(mutex);
}

static void unblock(pthread_mutex_t *mutex, const sigset_t *before)
{
	pthread_mutex_unlock(mutex);
	pthread_sigmask(SIG_SETMASK, before, NULL);
}

static void forget_thread(void *self)
{
	struct relay_trace_thread *thread = self;
	sigset_t before;
	block(&threads_lock, &before);
	if (thread->previous)
		thread->previous->next = thread->next;
	else
		threads = thread->next;
	if (thread->next)
		thread->next->previous = thread->previous;
	*thread = (struct relay_trace_thread){0};
	relay_quiet_end();
	unblock(&threads_lock, &before);
}

bool relay_trace_begin_threads(void)
{
	relay_fence_register();
	return pthread_key_create(&ends, forget_thread) == 0;
}

void relay_trace_show_tracings(struct relay_inline_tracing *const *all)
{
	tracings = all;
}

void relay_trace_know_thread(void)
{
	struct relay_trace_thread *self = &relay_trace_self;
	sigset_t before;
	/* The id is stored before is_plain, because a signal handler of this thread that finds is_plain set writes without coming
	 * here. A thread that became quiet has its id from relay_trace_prepare(). */
	if (!self->tid)
		self->tid = (uint32_t)syscall(SYS_gettid);
	self->tracings = tracings;
	/* A signal handler of this thread that finds is_plain set uses what is stored before. */
	__atomic_signal_fence(__ATOMIC_RELEASE);
	self->is_plain[RELAY_INLINE_VERSION] = !relay_is_quiet();
	if (self->is_known)
		return;
	block(&threads_lock, &before);
	if (!self->is_known) {
		self->is_known = true;
		self->previous = NULL;
		self->next = threads;
		if (threads)
			threads->previous = self;
		threads = self;
	}
	unblock(&threads_lock, &before);
	/* pthread_setspecific(3) allocates no memory for the first 32 keys of a process. */
	pthread_setspecific(ends, self);
}

/* True if no other thread is in the list: then no fence is needed, because a thread that writes its first event later
 * takes threads_lock before it loads a pointer. */
static bool is_alone(void)
{
	return !threads || (threads == &relay_trace_self && !threads->next);
}

/* Set `awaited` of each thread. false: it is not known who is inside, because the threads cannot be fenced. */
static bool note_inside(void)
{
	sigset_t before;
	block(&threads_lock, &before);
	bool is_known = is_alone() || relay_fence_writers();
	for (struct relay_trace_thread *thread = threads; is_known && thread; thread = thread->next) {
		/* Pairs with the release in relay_trace_leave(): a thread that has left does not use the memory. */
		uint32_t inside = __atomic_load_n(&thread->inside, __ATOMIC_ACQUIRE);
		bool is_inside = (inside & RELAY_TRACE_NESTED) > (thread == &relay_trace_self);
		thread->awaited = is_inside ? inside : 0;
	}
	unblock(&threads_lock, &before);
	return is_known;
}

/* True if the thread has left since note_inside(). */
static bool has_left(const struct relay_trace_thread *thread)
{
	/* Pairs with the release in relay_trace_leave(): the thread no longer uses the memory. */
	uint32_t inside = __atomic_load_n(&thread->inside, __ATOMIC_ACQUIRE);
	return !thread->awaited || (inside ^ thread->awaited) & ~(uint32_t)RELAY_TRACE_NESTED;
}

static bool have_all_left(void)
{
	sigset_t before;
	bool left = true;
	block(&threads_lock, &before);
	for (const struct relay_trace_thread *thread = threads; left && thread; thread = thread->next)
		left = has_left(thread);
	unblock(&threads_lock, &before);
	return left;
}

void relay_trace_retire(struct relay_retired *what, void (*free)(void *arg), void *arg)
{
	if (!note_inside())
		return;
	*what = (struct relay_retired){free, arg, retired};
	retired = what;
}

bool relay_trace_has_retired(void (*free)(void *arg))
{
	struct relay_retired *found = retired;
	while (found && found->free != free)
		found = found->next;
	return found;
}

void relay_trace_free_retired(void)
{
	if (!retired || !have_all_left())
		return;
	for (struct relay_retired *next; retired; retired = next) {
		next = retired->next;
		retired->free(retired->arg);
	}
}

void relay_trace_forget_threads(void)
{
	pthread_mutex_init(&threads_lock, NULL);
	pthread_mutex_init(&lock, NULL);
	relay_trace_self.next = relay_trace_self.previous = NULL;
	relay_trace_self.tid = (uint32_t)syscall(SYS_gettid);
	threads = relay_trace_self.is_known ? &relay_trace_self : NULL;
}

void relay_trace_lock(sigset_t *before)
{
	block(&lock, before);
}

void relay_trace_unlock(const sigset_t *before)
{
	unblock(&lock, before);
}

void relay_trace_locked(void (*run)(void *arg), void *arg)
{
	sigset_t before;
	int saved = errno;
	relay_trace_lock(&before);
	relay_on_own_stack(run, arg);
	relay_trace_unlock(&before);
	errno = saved;
}
