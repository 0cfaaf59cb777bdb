/* SPDX-License-Identifier: MIT */
/*
 * Restartable sequences: what local_irq_save() is to the kernel's relay_write(). Within one CPU the writer is
 * alone; preemption, migration or a signal inside a section sends it to its abort label, and the section's
 * last store publishes everything. Linux rseq(2), registered for every thread by glibc 2.35 and later; with other C
 * libraries base/rseq.c registers a thread when it first needs it.
 *
 * Rules for what stands between the section's labels: no call, and nothing that must not be done twice.
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
	RELAY_RSEQ_MOVED,   /* the latch is not as expected: look again */
	RELAY_RSEQ_STOPPED, /* a refused flag is set */
	RELAY_RSEQ_ABORTED  /* interrupted, or this is not the CPU */
};

/* Not an errno: this thread is not (any more) on the CPU to which the memory belongs. */
enum { RELAY_WRONG_CPU = 1 };

/* The thread sanitizer does not see what assembly publishes. */
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#define RELAY_PUBLISHES(word) __tsan_release(word)
#else
#define RELAY_PUBLISHES(word) ((void)(word))
#endif

/* A change of a latch together with up to three words that belong to it (a switch's ledger). */
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
	void *to; /* behind the header */
};

#ifdef RELAY_LIBC_HAS_RSEQ

static inline struct rseq *relay_rseq_area(void)
{
	return (struct rseq *)((char *)__builtin_thread_pointer() + __rseq_offset);
}

/* The C library has registered the thread, or could not. */
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

/* False if it cannot be had: for this thread, for ever. */
bool relay_rseq_register(void);

#endif

/* The CPU this thread probably runs on; a number that no section accepts if it has no rseq. */
static inline uint32_t relay_rseq_cpu(void)
{
	return __atomic_load_n(&relay_rseq_area()->cpu_id_start, __ATOMIC_RELAXED);
}

/* Asked after an abort, not before a section. */
static inline bool relay_rseq_registered(void)
{
	int32_t cpu = (int32_t)__atomic_load_n(&relay_rseq_area()->cpu_id, __ATOMIC_RELAXED);
	return cpu >= 0 || (cpu == RSEQ_CPU_ID_UNINITIALIZED && relay_rseq_register());
}

/* Why a section on `cpu` was aborted. 0: it was interrupted, so try again; RELAY_WRONG_CPU; -ENOTSUP: this thread has no
 * sections. Cold, because its callers are hot and seldom ask. */
static inline __attribute__((cold)) int relay_rseq_misplaced(uint32_t cpu)
{
	if (!relay_rseq_registered())
		return -ENOTSUP;
	return relay_rseq_cpu() == cpu ? 0 : RELAY_WRONG_CPU;
}

/*
 * relay_rseq_record(): if this is `cpu`, flags has no RELAY_STOPPED bit, head.first is `expect` and names no
 * claim: copy length (1 or more) bytes to `to`, count one record, set head.first to `next`.
 *
 * relay_rseq_stamped_record(): the same, but the record is `stamp` and behind it length (0 or more) bytes.
 *
 * relay_rseq_transact(): the same for a struct relay_tx on any latch, without a copy.
 *
 * relay_rseq_pass(): if this is `cpu` and latch->first is `expect`: store `records` into the second word that is not valid, `passed`
 * into *word, and `next` into latch->first.
 *
 * relay_rseq_tally(): if this is `cpu`: add {1, length} to a latch.
 *
 * relay_rseq_ring_record(): if this is `cpu`, flags has no RELAY_STOPPED bit and the producer position is put->expect:
 * copy length bytes to put->to, store the header before them, count one record, set the producer position to put->next.
 *
 * relay_rseq_ring_reserve(): the same without a copy, if producer->last is `last`; it becomes new_last.
 *
 * relay_rseq_add(): if this is `cpu`: add to a word.
 */

/* One section: what the architecture's RELAY_RSEQ_ENTER and RELAY_RSEQ_LEAVE enclose, and the end of the function around it. */
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
