/* SPDX-License-Identifier: MIT */
/*
 * The restartable sections for arm64; inline/rseq.h says what they do. Only inline/rseq.h includes this.
 *
 * The last store of a section is a store-release: all that the section stored before it is visible first.
 */

/* The signature before the abort handlers, for C libraries that do not define it; the same as glibc's. */
#ifndef RSEQ_SIG
#define RSEQ_SIG 0xd428bc00
#endif

/* One instruction a line: */
/* clang-format off */

/* The entry of a section, and its abort handler behind the registered signature. */
#define RELAY_RSEQ_ENTER                                                                                              \
	"adrp x9, 3b\n"                                                                                                \
	"add x9, x9, :lo12:3b\n"                                                                                       \
	"str x9, [%[rseq], %[rseq_cs]]\n"                                                                              \
	"1:\n"                                                                                                         \
	"ldr w9, [%[rseq], %[cpu_id]]\n"                                                                               \
	"cmp w9, %w[cpu]\n"                                                                                            \
	"b.ne %l[aborted]\n"

#define RELAY_RSEQ_LEAVE                                                                                              \
	"2:\n"                                                                                                         \
	".pushsection __rseq_failure, \"ax?\"\n"                                                                       \
	".inst 0xd428bc00\n"                                                                                           \
	"4: b %l[aborted]\n"                                                                                           \
	".popsection\n"

/* Copy `length` bytes, any number of them. */
#define RELAY_COPY													\
	"mov x11, %[to]\n"												\
	"mov x12, %[from]\n"												\
	"mov x13, %[length]\n"												\
	"10: cmp x13, #16\n"												\
	"b.lo 11f\n"													\
	"ldp x9, x10, [x12], #16\n"											\
	"stp x9, x10, [x11], #16\n"											\
	"sub x13, x13, #16\n"												\
	"b 10b\n"													\
	"11: tbz x13, #3, 12f\n"											\
	"ldr x9, [x12], #8\n"												\
	"str x9, [x11], #8\n"												\
	"12: tbz x13, #2, 13f\n"											\
	"ldr w9, [x12], #4\n"												\
	"str w9, [x11], #4\n"												\
	"13: tbz x13, #1, 14f\n"											\
	"ldrh w9, [x12], #2\n"												\
	"strh w9, [x11], #2\n"												\
	"14: tbz x13, #0, 15f\n"											\
	"ldrb w9, [x12]\n"												\
	"strb w9, [x11]\n"												\
	"15:\n"

/* Jump to `refused` if the buffer is stopped, to `moved` if head.first is not `expect`. */
#define RELAY_RECORD_CHECK												\
	"ldr w9, [%[flags]]\n"												\
	"tst w9, %[stopped]\n"												\
	"b.ne %l[refused]\n"												\
	"ldr x9, [%[head]]\n"												\
	"cmp x9, %[expect]\n"												\
	"b.ne %l[moved]\n"

/* Store the first 8 bytes of the record, which end at `to`. */
#define RELAY_RECORD_STAMP "str %[stamp], [%[to], #-8]\n"

/* Store second[t] + 1 in second[!t], then `next` in first; t: the top bit of `expect`. `moved`: second[t] names a claim. */
#define RELAY_RECORD_COMMIT RELAY_RECORDS_COMMIT("add x11, x11, #1\n")
#define RELAY_RECORDS_COMMIT(count)											\
	"lsr x9, %[expect], #63\n"											\
	"add x10, %[head], x9, lsl #3\n"										\
	"ldr x11, [x10, #8]\n"												\
	"lsr x12, x11, %[owner_shift]\n"										\
	"cbnz x12, %l[moved]\n"												\
	count														\
	"eor x9, x9, #1\n"												\
	"add x10, %[head], x9, lsl #3\n"										\
	"str x11, [x10, #8]\n"												\
	"stlr %[next], [%[head]]\n"

#define RELAY_RECORD_INPUTS												\
	[head] "r"(&control->head), [flags] "r"(&control->flags), [expect] "r"(expect), [next] "r"(next), [to] "r"(to),	\
	    [from] "r"(from), [length] "r"(length), [stopped] "i"(RELAY_STOPPED), [owner_shift] "i"(RELAY_OWNER_SHIFT)

/* For lengths that the compiler knows, without a branch: pieces of 8 to 64 bytes, which may overlap. */
#define RELAY_COPY_4 "ldr w9, [%[from]]\n str w9, [%[to]]\n"
#define RELAY_COPY_8 "ldr x9, [%[from]]\n str x9, [%[to]]\n"
#define RELAY_COPY_16 "ldp x9, x10, [%[from]]\n stp x9, x10, [%[to]]\n"
#define RELAY_COPY_ENDS "add x11, %[from], %[length]\n add x12, %[to], %[length]\n"
#define RELAY_COPY_UP_TO_16 RELAY_COPY_ENDS RELAY_COPY_8 "ldur x9, [x11, #-8]\n stur x9, [x12, #-8]\n"
#define RELAY_COPY_UP_TO_32 RELAY_COPY_ENDS RELAY_COPY_16 "ldp x9, x10, [x11, #-16]\n stp x9, x10, [x12, #-16]\n"
#define RELAY_COPY_BLOCK_32(from, to, at)										\
	"ldp x9, x10, [" from ", #" at "]\n stp x9, x10, [" to ", #" at "]\n"						\
	"ldp x9, x10, [" from ", #" at " + 16]\n stp x9, x10, [" to ", #" at " + 16]\n"
#define RELAY_COPY_START(at) RELAY_COPY_BLOCK_32("%[from]", "%[to]", at)
#define RELAY_COPY_END(at) RELAY_COPY_BLOCK_32("x11", "x12", at)
#define RELAY_COPY_UP_TO_64 RELAY_COPY_ENDS RELAY_COPY_START("0") RELAY_COPY_END("-32")
#define RELAY_COPY_UP_TO_128												\
	RELAY_COPY_ENDS RELAY_COPY_START("0") RELAY_COPY_START("32") RELAY_COPY_END("-64") RELAY_COPY_END("-32")
#define RELAY_COPY_UP_TO_256												\
	RELAY_COPY_ENDS RELAY_COPY_START("0") RELAY_COPY_START("32") RELAY_COPY_START("64") RELAY_COPY_START("96")	\
	RELAY_COPY_END("-128") RELAY_COPY_END("-96") RELAY_COPY_END("-64") RELAY_COPY_END("-32")

#define RELAY_COPY_CLOBBERS "x9", "x10", "x11", "x12", "x13"

/* COPY(name, instructions, clobbers ...): of any length, and of those that the compiler knows. */
#define RELAY_ANY_COPY(COPY) COPY(any, RELAY_COPY, RELAY_COPY_CLOBBERS)
#define RELAY_KNOWN_COPIES(COPY)											\
	COPY(4, RELAY_COPY_4, RELAY_COPY_CLOBBERS)									\
	COPY(8, RELAY_COPY_8, RELAY_COPY_CLOBBERS)									\
	COPY(up_to_16, RELAY_COPY_UP_TO_16, RELAY_COPY_CLOBBERS)							\
	COPY(16, RELAY_COPY_16, RELAY_COPY_CLOBBERS)									\
	COPY(up_to_32, RELAY_COPY_UP_TO_32, RELAY_COPY_CLOBBERS)							\
	COPY(up_to_64, RELAY_COPY_UP_TO_64, RELAY_COPY_CLOBBERS)							\
	COPY(up_to_128, RELAY_COPY_UP_TO_128, RELAY_COPY_CLOBBERS)							\
	COPY(up_to_256, RELAY_COPY_UP_TO_256, RELAY_COPY_CLOBBERS)
#define RELAY_LONG_COPY(COPY)

/* The function for all other lengths. */
#define RELAY_COPIED_ANYHOW(call, length, ...) call##_any(__VA_ARGS__)

/* The longest record that programs copy inline. */
#define RELAY_INLINE_LENGTH_MAX UINT32_MAX

RELAY_INLINE enum relay_rseq_result relay_rseq_tally(struct relay_latch *latch, uint64_t length, uint32_t cpu)
{
	RELAY_RSEQ_SECTION(
	    "ldr x9, [%[latch]]\n"
	    "lsr x10, x9, #63\n"
	    "add x11, %[latch], x10, lsl #3\n"
	    "ldr x12, [x11, #8]\n"
	    "add x12, x12, %[length]\n"
	    "eor x10, x10, #1\n"
	    "add x11, %[latch], x10, lsl #3\n"
	    "str x12, [x11, #8]\n"
	    "add x9, x9, #1\n"
	    "eor x9, x9, #0x8000000000000000\n"
	    "stlr x9, [%[latch]]\n",
	    RELAY_INPUTS([latch] "r"(latch), [length] "r"(length)),
	    "x9", "x10", "x11", "x12")
}

RELAY_INLINE enum relay_rseq_result relay_rseq_add(int64_t *word, int64_t delta, uint32_t cpu)
{
	RELAY_RSEQ_SECTION(
	    "ldr x9, [%[word]]\n"
	    "add x9, x9, %[delta]\n"
	    "str x9, [%[word]]\n",
	    RELAY_INPUTS([word] "r"(word), [delta] "r"(delta)),
	    "x9")
}

RELAY_INLINE bool relay_local_cmpxchg(uint64_t *word, uint64_t old, uint64_t next)
{
	/* Acquire: what the thread or handler stored that released the word. */
	return __atomic_compare_exchange_n(word, &old, next, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

/* Store `counted` in the second word that is not valid, at `second`, then `next` in first. */
#define RELAY_HEAD_COMMIT												\
	"str %[counted], [%[second]]\n"											\
	"stlr %[next], [%[head]]\n"
#define RELAY_HEAD_INPUTS												\
	[head] "r"(&control->head), [flags] "r"(&control->flags), [expect] "r"(expect), [next] "r"(next),		\
	    [counted] "r"(counted), [second] "r"(second), [stopped] "i"(RELAY_STOPPED)
#define RELAY_HEAD_CLOBBERS "x9"

RELAY_INLINE uint64_t relay_clock_tsc(void)
{
	uint64_t count;
	__asm__ volatile("isb; mrs %0, cntvct_el0" : "=r"(count) : : "memory");
	return count;
}

/* --- record rings (ring_layout.h) --- */

/* Jump to `refused` if the ring is stopped, to `moved` if the producer position is not `expect`. */
#define RELAY_RING_CHECK												\
	"ldr w9, [%[producer], %[flags]]\n"										\
	"tst w9, %[stopped]\n"												\
	"b.ne %l[refused]\n"											\
	"ldr x9, [%[producer]]\n"											\
	"cmp x9, %[expect]\n"												\
	"b.ne %l[moved]\n"

/* Store the header, then position and number of records in the tail that is not valid, then the producer position. */
#define RELAY_RING_COMMIT												\
	"str %[header], [%[to], #-8]\n"											\
	"ldr x9, [%[producer], %[tail]]\n"										\
	"cmp x9, %[expect]\n"												\
	"cset x9, ne\n"													\
	"add x10, %[producer], x9, lsl #4\n"										\
	"ldr x11, [x10, %[tail] + 8]\n"											\
	"add x11, x11, #1\n"												\
	"eor x9, x9, #1\n"												\
	"add x10, %[producer], x9, lsl #4\n"										\
	"str x11, [x10, %[tail] + 8]\n"											\
	"str %[next], [x10, %[tail]]\n"											\
	"stlr %[next], [%[producer]]\n"

/* Of relay_rseq_ring_reserve(): jump to `moved` if producer->last is not `last`, else set it. */
#define RELAY_RING_NAME_CLAIM												\
	"ldr x9, [%[producer], %[last]]\n"										\
	"cmp x9, %[old_last]\n"												\
	"b.ne %l[moved]\n"												\
	"str %[new_last], [%[producer], %[last]]\n"
#define RELAY_RING_NAME_CLAIM_CLOBBERS "x9", "x10", "x11"

/* clang-format on */
