/* SPDX-License-Identifier: MIT */
/* Two counters that change together; layout.h tells how. */
#ifndef RELAYFS_BASE_LATCH_H
#define RELAYFS_BASE_LATCH_H

#include <relayfs/layout.h>
#include <stdbool.h>

/* More changes in a row than any writer can make while a reader loads three words of one line. */
enum { RELAY_PAIR_TRIES = 1000 };

/* So often somebody else was quicker to change a word: one of any number of honest writers would have come to his turn
 * long before. Who changes it on and on keeps nobody for longer than this. */
enum { RELAY_CHANGE_TRIES = 100000 };

/* One consistent view; false: it did not come to rest, which no honest writer causes. */
static inline bool relay_pair_read(const struct relay_pair *pair, uint64_t *first, uint64_t *second)
{
	for (int i = 0; i < RELAY_PAIR_TRIES; i++) {
		/* Pairs with the writer's commit: what it wrote before (payload, ledgers) is seen after. */
		uint64_t f = __atomic_load_n(&pair->first, __ATOMIC_ACQUIRE);
		/* Acquire keeps this load before the check below. */
		uint64_t s = __atomic_load_n(&pair->second[f >> 63], __ATOMIC_ACQUIRE);
		if (__atomic_load_n(&pair->first, __ATOMIC_RELAXED) == f) {
			*first = f & ~RELAY_PAIR_TOGGLE;
			*second = s;
			return true;
		}
	}
	return false;
}

/* The same; a pair that does not come to rest counts as 0, 0. */
static inline void relay_pair_or_zero(const struct relay_pair *pair, uint64_t *first, uint64_t *second)
{
	if (!relay_pair_read(pair, first, second))
		*first = *second = 0;
}

/* By who alone writes this pair. */
static inline void relay_pair_store(struct relay_pair *pair, uint64_t first, uint64_t second)
{
	uint64_t toggle = ~__atomic_load_n(&pair->first, __ATOMIC_RELAXED) & RELAY_PAIR_TOGGLE;
	__atomic_store_n(&pair->second[toggle >> 63], second, __ATOMIC_RELAXED);
	/* Pairs with the acquire in relay_pair_read(): the second word before the commit. */
	__atomic_store_n(&pair->first, (first & ~RELAY_PAIR_TOGGLE) | toggle, __ATOMIC_RELEASE);
}

/* {first, second} from old to new in one step, a full barrier. false: somebody else changed them. */
static inline bool relay_two_swap(struct relay_two *two, uint64_t old_first, uint64_t old_second, uint64_t new_first,
                                  uint64_t new_second)
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

/* The lockless way to change a pair: {first, second[0]}. */
static inline bool relay_pair_swap(struct relay_pair *pair, uint64_t old_first, uint64_t old_second, uint64_t new_first,
                                   uint64_t new_second)
{
	return relay_two_swap((struct relay_two *)&pair->first, old_first, old_second, new_first, new_second);
}

#endif
