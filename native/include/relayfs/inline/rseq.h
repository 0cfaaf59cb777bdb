/* SPDX-License-Identifier: MIT */
/*
 * Restartable sequences, rseq(2), of <relayfs/producer.h> and of the library. They are what local_irq_save() is to the
 * kernel's relay_write(): if a thread is preempted, migrated or interrupted by a signal inside a section, the kernel
 * continues it at the section's abort label. The last store of a section publishes all others. A section calls no
 * function, and does nothing that must not be done twice.
 *
 * Programs do not include this file: <relayfs/producer.h> does, where the C library registers threads (glibc 2.35).
 */
#ifndef RELAYFS_INLINE_RSEQ_H
#define RELAYFS_INLINE_RSEQ_H

#include <relayfs/inline/version.h>
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

#ifdef __cplusplus
extern "C" {
#endif

enum relay_rseq_result {
	RELAY_RSEQ_DONE,
	RELAY_RSEQ_MOVED,   /* the latch or position is not as expected: load it again */
	RELAY_RSEQ_STOPPED, /* a flag is set that must not be set */
	RELAY_RSEQ_ABORTED  /* interrupted, or the thread is on another CPU */
};

/* Report a store to `word` with release to the thread sanitizer, which does not see the stores of assembly. */
#ifdef __has_feature
#define RELAY_HAS_TSAN __has_feature(thread_sanitizer)
#elif defined(__SANITIZE_THREAD__)
#define RELAY_HAS_TSAN 1
#else
#define RELAY_HAS_TSAN 0
#endif
#if RELAY_HAS_TSAN
#include <sanitizer/tsan_interface.h>
#define RELAY_PUBLISHES(word) __tsan_release(word)
#else
#define RELAY_PUBLISHES(word) ((void)(word))
#endif

/* A record at a ring's producer position. */
struct relay_ring_put {
	uint64_t expect, next; /* producer positions before and after */
	uint64_t header;
	void *to; /* address behind the header */
};

#ifdef RELAY_LIBC_HAS_RSEQ

RELAY_INLINE struct rseq *relay_rseq_area(void)
{
	char *thread;
#if defined(__x86_64__) && (defined(__clang__) ? __clang_major__ < 14 : __GNUC__ < 11)
	/* These compilers have no __builtin_thread_pointer() for this architecture. */
	__asm__("mov %%fs:0, %0" : "=r"(thread));
#else
	thread = (char *)__builtin_thread_pointer();
#endif
	return (struct rseq *)(thread + __rseq_offset);
}

#else

/* Only in the library: base/rseq.c. */
extern __thread struct rseq relay_rseq_self __attribute__((visibility("hidden")));

RELAY_INLINE struct rseq *relay_rseq_area(void)
{
	return &relay_rseq_self;
}

#endif

/* The CPU on which this thread probably runs. Each section checks it, and is aborted if it is wrong. */
RELAY_INLINE uint32_t relay_rseq_cpu(void)
{
	return __atomic_load_n(&relay_rseq_area()->cpu_id_start, __ATOMIC_RELAXED);
}

/*
 * After a section the thread's area still has the address of the section's descriptor, and the kernel may look at it
 * when the thread is preempted next. The library is never unloaded, nor is a program. Another shared object may be
 * (dlclose(3)), and then the kernel would end the process by SIGSEGV. So its sections clear the address.
 */
#if defined(__PIC__) && !defined(__PIE__) && !defined(RELAY_NEVER_UNLOADED)
#define RELAY_RSEQ_FORGET()                                                                                     \
	__atomic_store_n((uint64_t *)((char *)relay_rseq_area() + offsetof(struct rseq, rseq_cs)), (uint64_t)0, \
	                 __ATOMIC_RELAXED)
#else
#define RELAY_RSEQ_FORGET() ((void)0)
#endif

/*
 * The sections. Each is aborted unless the thread is on `cpu`.
 *
 * relay_rseq_record(): if flags has no RELAY_STOPPED bit, head.first is `expect` and head.second names no claim: copy
 * length (1 or more) bytes to `to`, count one record, set head.first to `next`.
 *
 * relay_rseq_stamped_record(): the same, but the record is `stamp` and behind it length (0 or more) bytes.
 *
 * relay_rseq_ring_record(): if flags has no RELAY_STOPPED bit and the producer position is put->expect: copy length
 * bytes to put->to, store the header before them, count one record, set the producer position to put->next.
 *
 * relay_rseq_reserve(): if flags has no RELAY_STOPPED bit and head.first is `expect`: set head.first to `next`, and its second
 * word to `counted`, which names a claim.
 *
 * relay_rseq_ring_reserve(): as relay_rseq_ring_record() without a copy, if producer->last is `last`; it becomes new_last.
 *
 * relay_rseq_tally(): add {1, length} to a latch.
 *
 * relay_rseq_add(): add to a word.
 *
 * And, without a section:
 *
 * relay_local_cmpxchg(): compare and swap a word on which only this thread and its signal handlers do that. Returns false if it
 * was not the old value.
 *
 * relay_clock_tsc(): the CPU's counter, read after all loads before the call.
 *
 * The functions that copy a record are always inlined. Otherwise the compiler makes them one function, whose arguments
 * are passed in memory instead of registers, and a short record takes a fifth longer. There is a function for each group
 * of lengths that the compiler may know (RELAY_KNOWN_COPIES).
 */

/* A section's descriptor (struct rseq_cs): from label 1 to 2, with the abort handler 4. The `?` puts it, and the handler, into
 * the group of the function, so that linkers which drop one of several copies of an inline function of C++ drop them, too. */
#define RELAY_RSEQ_DESCRIPTOR               \
	".pushsection __rseq_cs, \"aw?\"\n" \
	".balign 32\n"                      \
	"3: .long 0, 0\n"                   \
	".quad 1f, (2f - 1f), 4f\n"         \
	".popsection\n"
#define RELAY_RSEQ_INPUTS                                                                             \
	[rseq] "r"(relay_rseq_area()), [cpu] "r"(cpu), [rseq_cs] "i"(offsetof(struct rseq, rseq_cs)), \
	    [cpu_id] "i"(offsetof(struct rseq, cpu_id)), [signature] "i"(RSEQ_SIG)

/* A section, which begins with the architecture's RELAY_RSEQ_ENTER and ends with its RELAY_RSEQ_LEAVE, and the return
 * statements of its function. */
#define RELAY_RSEQ_SECTION(instructions, inputs, ...)                                              \
	__asm__ goto volatile(RELAY_RSEQ_DESCRIPTOR RELAY_RSEQ_ENTER instructions RELAY_RSEQ_LEAVE \
	                      :                                                                    \
	                      : RELAY_RSEQ_INPUTS, inputs                                          \
	                      : "memory", "cc", __VA_ARGS__                                        \
	                      : moved, refused, aborted);                                          \
	RELAY_RSEQ_FORGET();                                                                       \
	return RELAY_RSEQ_DONE;                                                                    \
moved:                                                                                             \
	RELAY_RSEQ_FORGET();                                                                       \
	return RELAY_RSEQ_MOVED;                                                                   \
refused:                                                                                           \
	RELAY_RSEQ_FORGET();                                                                       \
	return RELAY_RSEQ_STOPPED;                                                                 \
aborted:                                                                                           \
	RELAY_RSEQ_FORGET();                                                                       \
	return RELAY_RSEQ_ABORTED;
#define RELAY_INPUTS(...) __VA_ARGS__

#if defined(__x86_64__)
#include <relayfs/inline/rseq_x86_64.h>
#elif defined(__aarch64__)
#include <relayfs/inline/rseq_aarch64.h>
#endif

/* clang-format off */

/* The functions relay_rseq_record_COPY(), for each copy of the architecture: RELAY_ANY_COPY, RELAY_KNOWN_COPIES and
 * RELAY_LONG_COPY. */
#define RELAY_RECORD_SECTION(name, copy, ...)										\
	RELAY_INLINE enum relay_rseq_result										\
	relay_rseq_record_##name(struct relay_control *control, uint64_t expect, uint64_t next, void *to,		\
	                         const void *from, uint64_t length, uint32_t cpu)					\
	{														\
		RELAY_RSEQ_SECTION(RELAY_RECORD_CHECK copy RELAY_RECORD_COMMIT, RELAY_INPUTS(RELAY_RECORD_INPUTS),	\
		    __VA_ARGS__)											\
	}
RELAY_ANY_COPY(RELAY_RECORD_SECTION)
RELAY_KNOWN_COPIES(RELAY_RECORD_SECTION)
RELAY_LONG_COPY(RELAY_RECORD_SECTION)

/* relay_rseq_stamped_COPY() */
#define RELAY_STAMPED_SECTION(name, copy, ...)										\
	RELAY_INLINE enum relay_rseq_result										\
	relay_rseq_stamped_##name(struct relay_control *control, uint64_t expect, uint64_t next, void *to,		\
	                          uint64_t stamp, const void *from, uint64_t length, uint32_t cpu)			\
	{														\
		RELAY_RSEQ_SECTION(RELAY_RECORD_CHECK RELAY_RECORD_STAMP copy RELAY_RECORD_COMMIT,			\
		    RELAY_INPUTS(RELAY_RECORD_INPUTS, [stamp] "r"(stamp)), __VA_ARGS__)					\
	}
RELAY_ANY_COPY(RELAY_STAMPED_SECTION)
RELAY_KNOWN_COPIES(RELAY_STAMPED_SECTION)
RELAY_LONG_COPY(RELAY_STAMPED_SECTION)

#define RELAY_RING_INPUTS												\
	[producer] "r"(producer), [expect] "r"(expect), [next] "r"(next), [header] "r"(header),		\
	    [to] "r"(to), [tail] "i"(offsetof(struct relay_ring_producer, tail)),					\
	    [flags] "i"(offsetof(struct relay_ring_producer, flags)), [stopped] "i"(RELAY_STOPPED)

/* relay_rseq_ring_COPY() */
#define RELAY_RING_SECTION(name, copy, ...)										\
	RELAY_INLINE enum relay_rseq_result										\
	relay_rseq_ring_##name(struct relay_ring_producer *producer, const struct relay_ring_put *put,			\
	                       const void *from, uint64_t length, uint32_t cpu)						\
	{														\
		uint64_t expect = put->expect, next = put->next, header = put->header;					\
		void *to = put->to;											\
		RELAY_RSEQ_SECTION(RELAY_RING_CHECK copy RELAY_RING_COMMIT,						\
		    RELAY_INPUTS(RELAY_RING_INPUTS, [from] "r"(from), [length] RELAY_RING_LENGTH(length)),		\
		    __VA_ARGS__)											\
	}
#define RELAY_RING_LENGTH(length) "r"(length)
RELAY_ANY_COPY(RELAY_RING_SECTION)
RELAY_KNOWN_COPIES(RELAY_RING_SECTION)
/* x86-64 has not enough registers for the length of a long copy. */
#undef RELAY_RING_LENGTH
#define RELAY_RING_LENGTH(length) "m"(length)
RELAY_LONG_COPY(RELAY_RING_SECTION)

RELAY_INLINE enum relay_rseq_result relay_rseq_reserve(struct relay_control *control, uint64_t expect, uint64_t next,
                                                       uint64_t counted, uint32_t cpu)
{
	uint64_t *second = &control->head.second[!(expect >> 63)];
	RELAY_RSEQ_SECTION(RELAY_RECORD_CHECK RELAY_HEAD_COMMIT, RELAY_INPUTS(RELAY_HEAD_INPUTS),
	    RELAY_HEAD_CLOBBERS)
}

RELAY_INLINE enum relay_rseq_result relay_rseq_ring_reserve(struct relay_ring_producer *producer,
                                                            const struct relay_ring_put *put, uint64_t last,
                                                            uint64_t new_last, uint32_t cpu)
{
	uint64_t expect = put->expect, next = put->next, header = put->header;
	void *to = put->to;
	RELAY_RSEQ_SECTION(RELAY_RING_CHECK RELAY_RING_NAME_CLAIM RELAY_RING_COMMIT,
	    RELAY_INPUTS(RELAY_RING_INPUTS, [old_last] "r"(last), [new_last] "r"(new_last),
	        [last] "i"(offsetof(struct relay_ring_producer, last))),
	    RELAY_RING_NAME_CLAIM_CLOBBERS)
}

/* clang-format on */

/* Call the function for `length`: of those without a branch, if the compiler knows the length. */
#define RELAY_IS_KNOWN(length, least, most) (__builtin_constant_p(length) && (length) >= (least) && (length) <= (most))
#define RELAY_COPIED(call, length, ...)                                     \
	(RELAY_IS_KNOWN(length, 4, 4)       ? call##_4(__VA_ARGS__)         \
	 : RELAY_IS_KNOWN(length, 8, 8)     ? call##_8(__VA_ARGS__)         \
	 : RELAY_IS_KNOWN(length, 9, 15)    ? call##_up_to_16(__VA_ARGS__)  \
	 : RELAY_IS_KNOWN(length, 16, 16)   ? call##_16(__VA_ARGS__)        \
	 : RELAY_IS_KNOWN(length, 17, 32)   ? call##_up_to_32(__VA_ARGS__)  \
	 : RELAY_IS_KNOWN(length, 33, 64)   ? call##_up_to_64(__VA_ARGS__)  \
	 : RELAY_IS_KNOWN(length, 65, 128)  ? call##_up_to_128(__VA_ARGS__) \
	 : RELAY_IS_KNOWN(length, 129, 256) ? call##_up_to_256(__VA_ARGS__) \
	                                    : RELAY_COPIED_ANYHOW(call, length, __VA_ARGS__))

RELAY_INLINE enum relay_rseq_result relay_rseq_record(struct relay_control *control, uint64_t expect, uint64_t next,
                                                      void *to, const void *from, uint64_t length, uint32_t cpu)
{
	return RELAY_COPIED(relay_rseq_record, length, control, expect, next, to, from, length, cpu);
}

RELAY_INLINE enum relay_rseq_result relay_rseq_stamped_record(struct relay_control *control, uint64_t expect,
                                                              uint64_t next, void *to, uint64_t stamp, const void *from,
                                                              uint64_t length, uint32_t cpu)
{
	void *behind = (char *)to + sizeof(stamp);
	return RELAY_COPIED(relay_rseq_stamped, length, control, expect, next, behind, stamp, from, length, cpu);
}

RELAY_INLINE enum relay_rseq_result relay_rseq_ring_record(struct relay_ring_producer *producer,
                                                           const struct relay_ring_put *put, const void *from,
                                                           uint64_t length, uint32_t cpu)
{
	return RELAY_COPIED(relay_rseq_ring, length, producer, put, from, length, cpu);
}

#ifdef __cplusplus
}
#endif
#endif
