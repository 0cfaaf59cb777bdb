/* SPDX-License-Identifier: MIT */
/* arm64: see base/cpu.h. */
#ifndef RELAYFS_BASE_ARCH_AARCH64_CPU_H
#define RELAYFS_BASE_ARCH_AARCH64_CPU_H

#include <arm_neon.h>

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

/* NEON cannot gather a bit of each byte: three times, neighbours are added, of which each has the bit of its place. */
static inline uint64_t relay_where_equal(const unsigned char *bytes, unsigned char byte)
{
	const uint8x16_t wanted = vdupq_n_u8(byte);
	const uint8x16_t places = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201ull));
	uint8x16_t first = vandq_u8(vceqq_u8(vld1q_u8(bytes), wanted), places);
	uint8x16_t second = vandq_u8(vceqq_u8(vld1q_u8(bytes + 16), wanted), places);
	uint8x16_t third = vandq_u8(vceqq_u8(vld1q_u8(bytes + 32), wanted), places);
	uint8x16_t last = vandq_u8(vceqq_u8(vld1q_u8(bytes + 48), wanted), places);
	uint8x16_t pairs = vpaddq_u8(vpaddq_u8(first, second), vpaddq_u8(third, last));
	return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(pairs, pairs)), 0);
}

#endif
