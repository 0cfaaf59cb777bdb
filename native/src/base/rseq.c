/* SPDX-License-Identifier: MIT */
/*
 * Registration of restartable sequences for C libraries that do not register them, such as musl. The first section that
 * a thread runs is aborted, because the thread's area has no valid CPU; the thread then registers itself by
 * relay_rseq_register().
 *
 * The kernel stores to the area (struct rseq) as long as it is registered, even after the C library has unmapped the
 * memory of a thread that ends. Therefore the last destructor that the thread runs ends the registration.
 */
#define _GNU_SOURCE
#include "base/rseq.h"

#ifndef RELAY_LIBC_HAS_RSEQ

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The length of the area that every kernel with rseq(2) accepts, even if it knows more fields. */
enum { AREA_BYTES = 32 };

__thread struct rseq relay_rseq_self = {.cpu_id = (uint32_t)RSEQ_CPU_ID_UNINITIALIZED};

static __thread unsigned destructor_runs;
static pthread_key_t thread_end;
static int has_thread_end;

/* Make relay_rseq_registered() return false for this thread from now on. */
static void forbid(void)
{
	/* Relaxed: only this thread and the kernel use the word. */
	__atomic_store_n(&relay_rseq_self.cpu_id, (uint32_t)RSEQ_CPU_ID_REGISTRATION_FAILED, __ATOMIC_RELAXED);
}

/* The destructor of thread_end. Other destructors may write records, so it has itself called again until the last
 * round. */
static void end_thread(void *self)
{
	if (++destructor_runs < PTHREAD_DESTRUCTOR_ITERATIONS && pthread_setspecific(thread_end, self) == 0)
		return;
	syscall(SYS_rseq, &relay_rseq_self, AREA_BYTES, RSEQ_FLAG_UNREGISTER, RSEQ_SIG);
	forbid();
}

/* Its priority makes it run before the constructors of the program and of tracing, which may write. */
__attribute__((constructor(101))) static void make_key(void)
{
	has_thread_end = pthread_key_create(&thread_end, end_thread) == 0;
}

bool relay_rseq_register(void)
{
	int saved = errno;
	/* The section that was aborted because of the invalid cpu_id has left its address here. Relaxed: as in
	 * forbid(). */
	__atomic_store_n(&relay_rseq_self.rseq_cs, 0, __ATOMIC_RELAXED);
	/* Without the destructor, the thread must not register itself. */
	bool done = has_thread_end && pthread_setspecific(thread_end, &relay_rseq_self) == 0;
	if (done && syscall(SYS_rseq, &relay_rseq_self, AREA_BYTES, 0, RSEQ_SIG))
		done = errno == EBUSY; /* a signal handler has just done it */
	if (!done)
		forbid();
	errno = saved;
	return done;
}

#endif
