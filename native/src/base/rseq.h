/* SPDX-License-Identifier: MIT */
/*
 * Restartable sequences, rseq(2): what <relayfs/inline/rseq.h> has for programs, too, and what only the library needs.
 * glibc 2.35 and later registers each thread; with other C libraries base/rseq.c registers a thread when a section was
 * aborted for the first time.
 */
#ifndef RELAYFS_BASE_RSEQ_H
#define RELAYFS_BASE_RSEQ_H

#include "base/arch/arch.h"

#include <errno.h>
#include <relayfs/inline/rseq.h>

/* Not an errno: this thread is not on the CPU to which the memory belongs. */
enum { RELAY_WRONG_CPU = 1 };

/* A change of a latch and of up to three other words, such as the words of struct relay_subbuf in a switch. */
struct relay_tx {
	uint64_t expect_first, expect_second; /* as they lie in memory */
	uint64_t new_first, new_second;
	struct {
		uint64_t *at;
		uint64_t value;
	} store[3];
	uint64_t refuse; /* flags that must not be set */
};

#ifdef RELAY_LIBC_HAS_RSEQ

/* The C library has registered the thread, or the kernel has refused. */
static inline bool relay_rseq_register(void)
{
	return false;
}

#else

/* Register the calling thread. If that fails, relay_rseq_registered() is false for it from then on. */
bool relay_rseq_register(void);

#endif

/* True if this thread is registered. Registers it, by a system call, unless that was tried before. So functions that
 * run for each record call this only after an abort. */
static inline bool relay_rseq_registered(void)
{
	int32_t cpu = (int32_t)__atomic_load_n(&relay_rseq_area()->cpu_id, __ATOMIC_RELAXED);
	return cpu >= 0 || (cpu == RSEQ_CPU_ID_UNINITIALIZED && relay_rseq_register());
}

/* Why a section on `cpu` was aborted. 0: it was interrupted, so try again; RELAY_WRONG_CPU; -ENOTSUP: this thread is not
 * registered. Cold, because functions that run for each record call it only after an abort. */
static inline __attribute__((cold)) int relay_rseq_misplaced(uint32_t cpu)
{
	if (!relay_rseq_registered())
		return -ENOTSUP;
	return relay_rseq_cpu() == cpu ? 0 : RELAY_WRONG_CPU;
}

/*
 * Further sections, as those of <relayfs/inline/rseq.h>.
 *
 * relay_rseq_transact(): if flags has no bit of tx->refuse, and the latch is {expect_first, expect_second}: do the
 * stores of tx->store, and set the latch to {new_first, new_second}.
 *
 * relay_rseq_pass(): if latch->first is `expect`: store `records` in the second word that is not valid, `passed` in
 * *word, and `next` in latch->first.
 *
 * relay_rseq_ring_reserve(): as relay_rseq_ring_record() without a copy, if producer->last is `last`; it becomes new_last.
 */
#include RELAY_ARCH_RSEQ_H

#endif
