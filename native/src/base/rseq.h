/* SPDX-License-Identifier: MIT */
/*
 * Restartable sequences, rseq(2). They are what local_irq_save() is to the kernel's relay_write(): if a thread is
 * preempted, migrated or interrupted by a signal inside a section, the kernel continues it at the section's abort
 * label. The last store of a section publishes all others. A section calls no function, and does nothing that must not
 * be done twice. glibc 2.35 and later registers each thread; with other C libraries base/rseq.c registers a thread
 * when a section was aborted for the first time.
 */
#ifndef RELAYFS_BASE_RSEQ_H
#define RELAYFS_BASE_RSEQ_H

#include "base/arch/arch.h"

#include <errno.h>
#include <relayfs/ring_layout.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if __has_include(<sys/rseq.h>)
#define RELAY_LIBC_HAS_RSEQ
#include <sys/rseq.h>
#else
#include <linux/rseq.h>
#endif

enum relay_rseq_result {
	RELAY_RSEQ_DONE,
	RELAY_RSEQ_MOVED,   /* the latch or position is not as expected: load it again */
	RELAY_RSEQ_STOPPED, /* a flag is set that must not be set */
	RELAY_RSEQ_ABORTED  /* interrupted, or the thread is on another CPU */
};

/* Not an errno: this thread is not on the CPU to which the memory belongs. */
enum { RELAY_WRONG_CPU = 1 };

/* Report a store to `word` with release to the thread sanitizer, which does not see the stores of assembly. */
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#define RELAY_PUBLISHES(word) __tsan_release(word)
#else
#define RELAY_PUBLISHES(word) ((void)(word))
#endif

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

/* A record at a ring's producer position. */
struct relay_ring_put {
	uint64_t expect, next; /* producer positions before and after */
	uint64_t header;
	void *to; /* address behind the header */
};

#ifdef RELAY_LIBC_HAS_RSEQ

static inline struct rseq *relay_rseq_area(void)
{
	return (struct rseq *)((char *)__builtin_thread_pointer() + __rseq_offset);
}

/* The C library has registered the thread, or the kernel has refused. */
static inline bool relay_rseq_register(void)
{
	return false;
}

#else

extern __thread struct rseq relay_rseq_self __attribute__((visibility("hidden")));

static inline struct rseq *relay_rseq_area(void)
{
	return &relay_rseq_self;
}

/* Register the calling thread. If that fails, relay_rseq_registered() is false for it from then on. */
bool relay_rseq_register(void);

#endif

/* The CPU on which this thread probably runs. Each section checks it, and is aborted if it is wrong. */
static inline uint32_t relay_rseq_cpu(void)
{
	return __atomic_load_n(&relay_rseq_area()->cpu_id_start, __ATOMIC_RELAXED);
}

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
 * The sections. Each is aborted unless the thread is on `cpu`.
 * relay_rseq_record(): if flags has no RELAY_STOPPED bit, head.first is `expect` and head.second names no claim: copy
 * length (1 or more) bytes to `to`, count one record, set head.first to `next`.
 *
 * relay_rseq_stamped_record(): the same, but the record is `stamp` and behind it length (0 or more) bytes.
 *
 * relay_rseq_transact(): if flags has no bit of tx->refuse, and the latch is {expect_first, expect_second}: do the
 * stores of tx->store, and set the latch to {new_first, new_second}.
 *
 * relay_rseq_pass(): if latch->first is `expect`: store `records` in the second word that is not valid, `passed` in
 * *word, and `next` in latch->first.
 *
 * relay_rseq_tally(): add {1, length} to a latch.
 *
 * relay_rseq_ring_record(): if flags has no RELAY_STOPPED bit and the producer position is put->expect: copy length
 * bytes to put->to, store the header before them, count one record, set the producer position to put->next.
 *
 * relay_rseq_ring_reserve(): the same without a copy, if producer->last is `last`; it becomes new_last.
 *
 * relay_rseq_add(): add to a word.
 *
 * The functions that copy a record are always inlined. Otherwise the compiler makes them one function, whose arguments
 * are passed in memory instead of registers, and a short record takes a fifth longer.
 */

/* A section, which begins with the architecture's RELAY_RSEQ_ENTER and ends with its RELAY_RSEQ_LEAVE, and the return
 * statements of its function. */
#define RELAY_RSEQ_SECTION(instructions, inputs, ...)                        \
	__asm__ goto volatile(RELAY_RSEQ_ENTER instructions RELAY_RSEQ_LEAVE \
	                      :                                              \
	                      : RELAY_RSEQ_INPUTS, inputs                    \
	                      : "memory", "cc", __VA_ARGS__                  \
	                      : moved, refused, aborted);                    \
	return RELAY_RSEQ_DONE;                                              \
moved:                                                                       \
	return RELAY_RSEQ_MOVED;                                             \
refused:                                                                     \
	return RELAY_RSEQ_STOPPED;                                           \
aborted:                                                                     \
	return RELAY_RSEQ_ABORTED;
#define RELAY_INPUTS(...) __VA_ARGS__

#include RELAY_ARCH_RSEQ_H

#endif
