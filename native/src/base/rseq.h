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
 * relay_rseq_records(): as relay_rseq_record(), but the bytes are those of n records.
 *
 * relay_rseq_pass(): if latch->first is `expect`: store `records` in the second word that is not valid, `passed` in
 * *word, and `next` in latch->first.
 */
#include RELAY_ARCH_RSEQ_H

/* clang-format off */
static inline enum relay_rseq_result relay_rseq_change(struct relay_latch *latch, const uint32_t *flags,
                                                       const struct relay_tx *tx, uint32_t cpu)
{
	RELAY_RSEQ_SECTION(RELAY_TRANSACT,
	    RELAY_INPUTS([latch] "r"(latch), [flags] "r"(flags), [tx] "r"(tx),
	        [refuse] "i"(offsetof(struct relay_tx, refuse)),
	        [expect_first] "i"(offsetof(struct relay_tx, expect_first)),
	        [expect_second] "i"(offsetof(struct relay_tx, expect_second)),
	        [new_first] "i"(offsetof(struct relay_tx, new_first)),
	        [new_second] "i"(offsetof(struct relay_tx, new_second)), [store] "i"(offsetof(struct relay_tx, store))),
	    RELAY_TRANSACT_CLOBBERS)
}

static inline enum relay_rseq_result relay_rseq_records(struct relay_control *control, uint64_t expect, uint64_t next,
                                                        void *to, const void *from, uint64_t length, uint64_t n,
                                                        uint32_t cpu)
{
	RELAY_RSEQ_SECTION(RELAY_RECORDS, RELAY_INPUTS(RELAY_RECORD_INPUTS, [n] "r"(n)), RELAY_RECORDS_CLOBBERS)
}

static inline enum relay_rseq_result relay_rseq_store_passed(struct relay_latch *latch, uint64_t expect, uint64_t next,
                                                             uint64_t records, uint64_t *word, uint64_t passed, uint32_t cpu)
{
	uint64_t *second = &latch->second[!(expect >> 63)];
	RELAY_RSEQ_SECTION(RELAY_PASS,
	    RELAY_INPUTS([latch] "r"(latch), [expect] "r"(expect), [next] "r"(next), [second] "r"(second),
	        [records] "r"(records), [word] "r"(word), [passed] "r"(passed)),
	    RELAY_PASS_CLOBBERS)
}
/* clang-format on */

/* Order the caller's next stores after those of a section that was done. */
static inline enum relay_rseq_result relay_rseq_before_stores(enum relay_rseq_result result)
{
	if (RELAY_RSEQ_IS_OVERTAKEN && result == RELAY_RSEQ_DONE)
		__atomic_thread_fence(__ATOMIC_SEQ_CST);
	return result;
}

/* The caller's next stores go into a sub-buffer that readers may still copy. */
static inline enum relay_rseq_result relay_rseq_transact(struct relay_latch *latch, const uint32_t *flags,
                                                         const struct relay_tx *tx, uint32_t cpu)
{
	return relay_rseq_before_stores(relay_rseq_change(latch, flags, tx, cpu));
}

/* The caller's next stores overwrite a record that a reader may still copy. */
static inline enum relay_rseq_result relay_rseq_pass(struct relay_latch *latch, uint64_t expect, uint64_t next,
                                                     uint64_t records, uint64_t *word, uint64_t passed, uint32_t cpu)
{
	return relay_rseq_before_stores(relay_rseq_store_passed(latch, expect, next, records, word, passed, cpu));
}

#endif
