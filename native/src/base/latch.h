/* SPDX-License-Identifier: MIT */
/* Two counters that change together, as the kernel's seqcount_latch does it; <relayfs/layout.h> tells how. */
#ifndef RELAYFS_BASE_LATCH_H
#define RELAYFS_BASE_LATCH_H

#include <relayfs/layout.h>
#include <stdbool.h>

/* A reader gives up after so many tries. No honest writer causes that many, because it would have to change the latch as often
 * while the reader loads three words of one cache line. */
enum { RELAY_LATCH_TRIES = 1000 };

/* A writer gives up after another one has changed the word so many times before it. Any number of honest writers would have let
 * it have its turn long before; a hostile one cannot hold it up for longer than this. */
enum { RELAY_CHANGE_TRIES = 100000 };

/* Load both counters as they were at one moment. false: the latch kept changing for RELAY_LATCH_TRIES tries. */
static inline bool relay_latch_read(const struct relay_latch *latch, uint64_t *first, uint64_t *second)
{
	for (int i = 0; i < RELAY_LATCH_TRIES; i++) {
		/* Pairs with the writer's commit: what it wrote before (payload, ledgers) is seen after. */
		uint64_t f = __atomic_load_n(&latch->first, __ATOMIC_ACQUIRE);
		/* Acquire keeps this load before the check below. */
		uint64_t s = __atomic_load_n(&latch->second[f >> 63], __ATOMIC_ACQUIRE);
		if (__atomic_load_n(&latch->first, __ATOMIC_RELAXED) == f) {
			*first = f & ~RELAY_LATCH_INDEX;
			*second = s;
			return true;
		}
	}
	return false;
}

/* The same; 0 and 0 if the latch kept changing. */
static inline void relay_latch_read_or_zero(const struct relay_latch *latch, uint64_t *first, uint64_t *second)
{
	if (!relay_latch_read(latch, first, second))
		*first = *second = 0;
}

/* Store both counters. The caller is the only writer of this latch. */
static inline void relay_latch_store(struct relay_latch *latch, uint64_t first, uint64_t second)
{
	uint64_t index = ~__atomic_load_n(&latch->first, __ATOMIC_RELAXED) & RELAY_LATCH_INDEX;
	/* Pairs with the acquire in relay_latch_read(): whoever sees the store below sees the commit of the call before this one. */
	__atomic_thread_fence(__ATOMIC_RELEASE);
	__atomic_store_n(&latch->second[index >> 63], second, __ATOMIC_RELAXED);
	/* Pairs with the acquire in relay_latch_read(): the second word before the commit. */
	__atomic_store_n(&latch->first, (first & ~RELAY_LATCH_INDEX) | index, __ATOMIC_RELEASE);
}

/* {first, second} from old to new in one step, a full barrier. false: somebody else changed them. */
static inline bool relay_u128_cmpxchg(struct relay_u128 *two, uint64_t old_first, uint64_t old_second,
                                      uint64_t new_first, uint64_t new_second)
{
#if defined(__x86_64__)
	bool swapped;
	__asm__ volatile("lock cmpxchg16b %[two]"
	                 : "=@ccz"(swapped), [two] "+m"(*two), "+a"(old_first), "+d"(old_second)
	                 : "b"(new_first), "c"(new_second)
	                 : "memory");
	return swapped;
#elif defined(__aarch64__)
	uint64_t first, second;
	uint32_t failed;
	do {
		__asm__ volatile("ldaxp %[f], %[s], %[two]"
		                 : [f] "=&r"(first), [s] "=&r"(second)
		                 : [two] "Q"(*two)
		                 : "memory");
		/* A pair of loads is atomic only if the pair of stores succeeds: store the old values back. */
		bool same = first == old_first && second == old_second;
		uint64_t f = same ? new_first : first, s = same ? new_second : second;
		__asm__ volatile("stlxp %w[failed], %[f], %[s], %[two]"
		                 : [failed] "=&r"(failed), [two] "+Q"(*two)
		                 : [f] "r"(f), [s] "r"(s)
		                 : "memory");
	} while (failed);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	return first == old_first && second == old_second;
#else
#error "relayfs knows x86-64 and arm64"
#endif
}

/* Change a latch of a buffer of another scheme than rseq: of these only {first, second[0]} are in use. false: somebody else has
 * changed it. */
static inline bool relay_latch_cmpxchg(struct relay_latch *latch, uint64_t old_first, uint64_t old_second,
                                       uint64_t new_first, uint64_t new_second)
{
	return relay_u128_cmpxchg((struct relay_u128 *)&latch->first, old_first, old_second, new_first, new_second);
}

#endif
