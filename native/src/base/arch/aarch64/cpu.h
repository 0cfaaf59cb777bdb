/* SPDX-License-Identifier: MIT */
/* arm64: see base/cpu.h. */
#ifndef RELAYFS_BASE_ARCH_AARCH64_CPU_H
#define RELAYFS_BASE_ARCH_AARCH64_CPU_H

static inline bool relay_u128_cmpxchg(struct relay_u128 *two, uint64_t old_first, uint64_t old_second,
                                      uint64_t new_first, uint64_t new_second)
{
	uint64_t first, second;
	uint32_t failed;
	do {
		__asm__ volatile("ldaxp %[f], %[s], %[two]"
		                 : [f] "=&r"(first), [s] "=&r"(second)
		                 : [two] "Q"(*two)
		                 : "memory");
		/* The two loads are atomic only if stlxp succeeds, so it stores the loaded values if they are not the
		 * old ones. */
		bool same = first == old_first && second == old_second;
		uint64_t f = same ? new_first : first, s = same ? new_second : second;
		__asm__ volatile("stlxp %w[failed], %[f], %[s], %[two]"
		                 : [failed] "=&r"(failed), [two] "+Q"(*two)
		                 : [f] "r"(f), [s] "r"(s)
		                 : "memory");
	} while (failed);
	/* A full barrier, as on x86-64: stlxp alone does not order later loads after it. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	return first == old_first && second == old_second;
}

/* The generic timer, which every arm64 CPU has. */
static inline bool relay_cpu_has_tsc(void)
{
	return true;
}

static inline void relay_relax(void)
{
	__asm__ volatile("yield");
}

static inline void relay_prefetch_for_store(const void *at)
{
	__builtin_prefetch(at, 1);
}

/* Eight bytes at a time: those of `zero` that are 0 get their highest bit, and a multiplication gathers these bits. */
static inline uint64_t relay_where_equal(const unsigned char *bytes, unsigned char byte)
{
	const uint64_t each = 0x0101010101010101ull, low = 0x7f * each, gather = 0x0102040810204080ull;
	uint64_t found = 0;
	for (int at = 0; at < RELAY_COMPARED; at += 8) {
		uint64_t eight;
		__builtin_memcpy(&eight, bytes + at, sizeof(eight));
		uint64_t zero = eight ^ each * byte;
		uint64_t equal = ~(((zero & low) + low) | zero | low) >> 7;
		found |= equal * gather >> 56 << at;
	}
	return found;
}

#endif
