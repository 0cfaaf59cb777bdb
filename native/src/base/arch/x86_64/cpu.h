/* SPDX-License-Identifier: MIT */
/* x86-64: see base/cpu.h. */
#ifndef RELAYFS_BASE_ARCH_X86_64_CPU_H
#define RELAYFS_BASE_ARCH_X86_64_CPU_H

#include <cpuid.h>

static inline bool relay_u128_cmpxchg(struct relay_u128 *two, uint64_t old_first, uint64_t old_second,
                                      uint64_t new_first, uint64_t new_second)
{
	bool swapped;
	__asm__ volatile("lock cmpxchg16b %[two]"
	                 : "=@ccz"(swapped), [two] "+m"(*two), "+a"(old_first), "+d"(old_second)
	                 : "b"(new_first), "c"(new_second)
	                 : "memory");
	return swapped;
}

static inline bool relay_cpu_has_tsc(void)
{
	enum { RDTSCP_LEAF = 0x80000001, RDTSCP_BIT = 1 << 27, INVARIANT_LEAF = 0x80000007, INVARIANT_BIT = 1 << 8 };
	unsigned eax, ebx, ecx, edx;
	return __get_cpuid(RDTSCP_LEAF, &eax, &ebx, &ecx, &edx) && edx & RDTSCP_BIT &&
	       __get_cpuid(INVARIANT_LEAF, &eax, &ebx, &ecx, &edx) && edx & INVARIANT_BIT;
}

static inline void relay_relax(void)
{
	__builtin_ia32_pause();
}

/* __builtin_prefetch() would not ask for ownership of the line, unless the compiler knows that the CPU can. CPUs that
 * cannot take this instruction for a hint to do nothing. */
static inline void relay_prefetch_for_store(const void *at)
{
	__asm__ volatile("prefetchw %0" : : "m"(*(const char *)at));
}

static inline uint64_t relay_where_equal(const unsigned char *bytes, unsigned char byte)
{
	/* SSE2, without its header: that of clang refuses other architectures. */
	typedef char sixteen __attribute__((vector_size(16)));
	uint64_t found = 0;
	for (int at = 0; at < RELAY_COMPARED; at += (int)sizeof(sixteen)) {
		sixteen these;
		__builtin_memcpy(&these, bytes + at, sizeof(these));
		sixteen equal = (sixteen)(these == (char)byte);
		found |= (uint64_t)(uint32_t)__builtin_ia32_pmovmskb128(equal) << at;
	}
	return found;
}

#endif
