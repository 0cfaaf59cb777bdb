/* SPDX-License-Identifier: MIT */
/*
 * Registration of restartable sequences where the C library does not register them, as musl: each thread does it when its
 * first section has been aborted, because the kernel knows nothing of it.
 *
 * The kernel stores into the area for as long as it is registered, also when the thread's memory has been unmapped at its
 * end; so the registration ends with the last destructor that a thread runs.
 */
#define _GNU_SOURCE
#include "base/rseq.h"

#ifndef RELAY_LIBC_HAS_RSEQ

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

/* What every kernel with rseq(2) takes as the area's length, whatever fields later kernels have added. */
enum { AREA_BYTES = 32 };

__thread struct rseq relay_rseq_self = {.cpu_id = (uint32_t)RSEQ_CPU_ID_UNINITIALIZED};

static __thread unsigned destructor_runs;
static pthread_key_t thread_end;
static int has_thread_end;

static void forbid(void)
{
	__atomic_store_n(&relay_rseq_self.cpu_id, (uint32_t)RSEQ_CPU_ID_REGISTRATION_FAILED, __ATOMIC_RELAXED);
}

/* Other destructors may write records: this one asks to be called again until the last round. */
static void end_thread(void *self)
{
	if (++destructor_runs < PTHREAD_DESTRUCTOR_ITERATIONS && pthread_setspecific(thread_end, self) == 0)
		return;
	syscall(SYS_rseq, &relay_rseq_self, AREA_BYTES, RSEQ_FLAG_UNREGISTER, RSEQ_SIG);
	forbid();
}

/* Before the constructors of programs and of the tracer, which may write. */
__attribute__((constructor(101))) static void make_key(void)
{
	has_thread_end = pthread_key_create(&thread_end, end_thread) == 0;
}

bool relay_rseq_register(void)
{
	int saved = errno;
	/* A section that was aborted because of the wrong cpu_id has left its address here. */
	__atomic_store_n(&relay_rseq_self.rseq_cs, 0, __ATOMIC_RELAXED);
	/* A thread that could not end its registration must not begin one. */
	bool done = has_thread_end && pthread_setspecific(thread_end, &relay_rseq_self) == 0;
	if (done && syscall(SYS_rseq, &relay_rseq_self, AREA_BYTES, 0, RSEQ_SIG))
		done = errno == EBUSY; /* a signal handler has just done it */
	if (!done)
		forbid();
	errno = saved;
	return done;
}

#endif
