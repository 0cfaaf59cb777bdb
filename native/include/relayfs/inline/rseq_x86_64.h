/* SPDX-License-Identifier: MIT */
/*
 * The restartable sections for x86-64; inline/rseq.h says what they do. Only inline/rseq.h includes this.
 *
 * Stores become visible in program order on x86 (TSO), so the last store of a section is a plain one.
 */

/* The signature before the abort handlers, for C libraries that do not define it; the same as glibc's. */
#ifndef RSEQ_SIG
#define RSEQ_SIG 0x53053053
#endif

/* One instruction a line: */
/* clang-format off */

/* The entry of a section, and its abort handler behind the signature that glibc registered: "ud1 0x53053053(%rip), %edi",
 * so that disassemblers stay in step. */
#define RELAY_RSEQ_ENTER                                                                                              \
	"leaq 3b(%%rip), %%rax\n"                                                                                      \
	"movq %%rax, %c[rseq_cs](%[rseq])\n"                                                                           \
	"1:\n"                                                                                                         \
	"cmpl %[cpu], %c[cpu_id](%[rseq])\n"                                                                           \
	"jnz 4f\n"

#define RELAY_RSEQ_LEAVE                                                                                              \
	"2:\n"                                                                                                         \
	".pushsection __rseq_failure, \"ax?\"\n"                                                                       \
	".byte 0x0f, 0xb9, 0x3d\n"                                                                                     \
	".long %c[signature]\n"                                                                                        \
	"4: jmp %l[aborted]\n"                                                                                         \
	".popsection\n"

/* Jump to `refused` if the buffer is stopped, to `moved` if head.first is not `expect`. */
#define RELAY_RECORD_CHECK                                                                                            \
	"testl %[stopped], %c[flags](%[control])\n"                                                                    \
	"jnz %l[refused]\n"                                                                                      \
	"cmpq %[expect], %c[head](%[control])\n"                                                                       \
	"jnz %l[moved]\n"

/* Store the first 8 bytes of the record, which end at `to`. */
#define RELAY_RECORD_STAMP "movq %[stamp], -8(%[to])\n"

/* Store second[t] in second[!t], increased by what `count` adds to rcx, then `next` in first; t: the top bit of `expect`.
 * `moved`: second[t] names a claim. */
#define RELAY_RECORD_COMMIT RELAY_RECORDS_COMMIT("incq %%rcx\n")
#define RELAY_RECORDS_COMMIT(count)                                                                           \
	"movq %[expect], %%rax\n"                                                                             \
	"shrq $63, %%rax\n"                                                                                   \
	"cmpw $0, %c[head] + 14(%[control], %%rax, 8)\n"                                                      \
	"jnz %l[moved]\n"                                                                                     \
	"movq %c[head] + 8(%[control], %%rax, 8), %%rcx\n"                                                    \
	count                                                                                                 \
	"xorl $1, %%eax\n"                                                                                    \
	"movq %%rcx, %c[head] + 8(%[control], %%rax, 8)\n"                                                    \
	"movq %[next], %c[head](%[control])\n"

#define RELAY_RECORD_INPUTS                                                                                           \
	[control] "r"(control), [expect] "r"(expect), [next] "r"(next), [to] "r"(to), [from] "r"(from),                \
	    [length] "r"(length), [head] "i"(offsetof(struct relay_control, head)),                                    \
	    [flags] "i"(offsetof(struct relay_control, flags)), [stopped] "i"(RELAY_STOPPED)

/* Moves of 16 bytes. Those of SSE would wait for the upper halves of registers in code that uses AVX. */
#ifdef __AVX__
#define RELAY_MOVE "vmovups"
#else
#define RELAY_MOVE "movups"
#endif

/* From this length on `rep movsb` is faster than 16-byte moves. */
enum { RELAY_REP_MOVSB_BYTES = 768 };

/* For lengths below RELAY_REP_MOVSB_BYTES: pairs of overlapping moves up to 64 bytes, then 64 bytes at a time. */
#define RELAY_COPY_SHORT												\
	"cmpq $16, %[length]\n"												\
	"jb 10f\n"													\
	"cmpq $32, %[length]\n"												\
	"ja 12f\n"													\
	RELAY_MOVE " (%[from]), %%xmm0\n"                       /* 16 .. 32 */						\
	RELAY_MOVE " -16(%[from], %[length]), %%xmm1\n"									\
	RELAY_MOVE " %%xmm0, (%[to])\n"											\
	RELAY_MOVE " %%xmm1, -16(%[to], %[length])\n"									\
	"jmp 19f\n"													\
	"10: cmpl $8, %k[length]\n"                        /* 8 .. 15 */						\
	"jb 11f\n"													\
	"movq (%[from]), %%rax\n"											\
	"movq -8(%[from], %[length]), %%rcx\n"										\
	"movq %%rax, (%[to])\n"												\
	"movq %%rcx, -8(%[to], %[length])\n"										\
	"jmp 19f\n"													\
	"11: cmpl $4, %k[length]\n"                        /* 4 .. 7 */							\
	"jb 13f\n"													\
	"movl (%[from]), %%eax\n"											\
	"movl -4(%[from], %[length]), %%ecx\n"										\
	"movl %%eax, (%[to])\n"												\
	"movl %%ecx, -4(%[to], %[length])\n"										\
	"jmp 19f\n"													\
	"13: testl %k[length], %k[length]\n"										\
	"jz 19f\n"													\
	"movb (%[from]), %%al\n"                           /* 1 .. 3: first, last, middle */				\
	"movb -1(%[from], %[length]), %%cl\n"										\
	"movb %%al, (%[to])\n"												\
	"movb %%cl, -1(%[to], %[length])\n"										\
	"cmpl $3, %k[length]\n"												\
	"jb 19f\n"													\
	"movb 1(%[from]), %%al\n"											\
	"movb %%al, 1(%[to])\n"												\
	"jmp 19f\n"													\
	"12: cmpq $64, %[length]\n"											\
	"ja 14f\n"													\
	RELAY_MOVE " (%[from]), %%xmm0\n"                       /* 33 .. 64 */						\
	RELAY_MOVE " 16(%[from]), %%xmm1\n"											\
	RELAY_MOVE " -32(%[from], %[length]), %%xmm2\n"									\
	RELAY_MOVE " -16(%[from], %[length]), %%xmm3\n"									\
	RELAY_MOVE " %%xmm0, (%[to])\n"											\
	RELAY_MOVE " %%xmm1, 16(%[to])\n"											\
	RELAY_MOVE " %%xmm2, -32(%[to], %[length])\n"									\
	RELAY_MOVE " %%xmm3, -16(%[to], %[length])\n"									\
	"jmp 19f\n"													\
	"14: leaq -64(%[length]), %%rcx\n"                 /* 65 and more: the last 64 may overlap */			\
	"xorl %%eax, %%eax\n"												\
	"15: " RELAY_MOVE " (%[from], %%rax), %%xmm0\n"										\
	RELAY_MOVE " 16(%[from], %%rax), %%xmm1\n"										\
	RELAY_MOVE " 32(%[from], %%rax), %%xmm2\n"										\
	RELAY_MOVE " 48(%[from], %%rax), %%xmm3\n"										\
	RELAY_MOVE " %%xmm0, (%[to], %%rax)\n"										\
	RELAY_MOVE " %%xmm1, 16(%[to], %%rax)\n"										\
	RELAY_MOVE " %%xmm2, 32(%[to], %%rax)\n"										\
	RELAY_MOVE " %%xmm3, 48(%[to], %%rax)\n"										\
	"addq $64, %%rax\n"												\
	"cmpq %%rcx, %%rax\n"												\
	"jb 15b\n"													\
	RELAY_MOVE " (%[from], %%rcx), %%xmm0\n"										\
	RELAY_MOVE " 16(%[from], %%rcx), %%xmm1\n"										\
	RELAY_MOVE " 32(%[from], %%rcx), %%xmm2\n"										\
	RELAY_MOVE " 48(%[from], %%rcx), %%xmm3\n"										\
	RELAY_MOVE " %%xmm0, (%[to], %%rcx)\n"										\
	RELAY_MOVE " %%xmm1, 16(%[to], %%rcx)\n"										\
	RELAY_MOVE " %%xmm2, 32(%[to], %%rcx)\n"										\
	RELAY_MOVE " %%xmm3, 48(%[to], %%rcx)\n"										\
	"19:\n"

#define RELAY_COPY_LONG													\
	"movq %[to], %%rdi\n"												\
	"movq %[from], %%rsi\n"												\
	"movq %[length], %%rcx\n"											\
	"rep movsb\n"

/* For lengths that the compiler knows, without a branch: blocks of 64 bytes, at a number of bytes from the record's start
 * or end, and parts of such. All of a block is loaded before anything of it is stored. */
#define RELAY_LOAD(at, end, register) RELAY_MOVE " " at "(%[from]" end "), %%" register "\n"
#define RELAY_STORE(at, end, register) RELAY_MOVE " %%" register ", " at "(%[to]" end ")\n"
#define RELAY_COPY_BLOCK(at, end)                                                                                      \
	RELAY_LOAD(at, end, "xmm0") RELAY_LOAD(at " + 16", end, "xmm1")                                                \
	RELAY_LOAD(at " + 32", end, "xmm2") RELAY_LOAD(at " + 48", end, "xmm3")                                        \
	RELAY_STORE(at, end, "xmm0") RELAY_STORE(at " + 16", end, "xmm1")                                              \
	RELAY_STORE(at " + 32", end, "xmm2") RELAY_STORE(at " + 48", end, "xmm3")
#define RELAY_END ", %[length]"
#define RELAY_COPY_4 "movl (%[from]), %%eax\n movl %%eax, (%[to])\n"
#define RELAY_COPY_8 "movq (%[from]), %%rax\n movq %%rax, (%[to])\n"
#define RELAY_COPY_UP_TO_16                                                                                            \
	"movq (%[from]), %%rax\n movq -8(%[from], %[length]), %%rcx\n"                                                 \
	"movq %%rax, (%[to])\n movq %%rcx, -8(%[to], %[length])\n"
#define RELAY_COPY_16 RELAY_LOAD("0", "", "xmm0") RELAY_STORE("0", "", "xmm0")
#define RELAY_COPY_UP_TO_32                                                                                            \
	RELAY_LOAD("0", "", "xmm0") RELAY_LOAD("-16", RELAY_END, "xmm1")                                               \
	RELAY_STORE("0", "", "xmm0") RELAY_STORE("-16", RELAY_END, "xmm1")
#define RELAY_COPY_UP_TO_64                                                                                            \
	RELAY_LOAD("0", "", "xmm0") RELAY_LOAD("16", "", "xmm1")                                                       \
	RELAY_LOAD("-32", RELAY_END, "xmm2") RELAY_LOAD("-16", RELAY_END, "xmm3")                                      \
	RELAY_STORE("0", "", "xmm0") RELAY_STORE("16", "", "xmm1")                                                     \
	RELAY_STORE("-32", RELAY_END, "xmm2") RELAY_STORE("-16", RELAY_END, "xmm3")
#define RELAY_COPY_UP_TO_128 RELAY_COPY_BLOCK("0", "") RELAY_COPY_BLOCK("-64", RELAY_END)
#define RELAY_COPY_UP_TO_256                                                                                           \
	RELAY_COPY_BLOCK("0", "") RELAY_COPY_BLOCK("64", "")                                                           \
	RELAY_COPY_BLOCK("-128", RELAY_END) RELAY_COPY_BLOCK("-64", RELAY_END)

/* COPY(name, instructions, clobbers ...): of any length, of those that the compiler knows, and of a long record. */
#define RELAY_ANY_COPY(COPY) COPY(any, RELAY_COPY_SHORT, "rax", "rcx", "xmm0", "xmm1", "xmm2", "xmm3")
#define RELAY_KNOWN_COPIES(COPY)											\
	COPY(4, RELAY_COPY_4, "rax", "rcx")										\
	COPY(8, RELAY_COPY_8, "rax", "rcx")										\
	COPY(up_to_16, RELAY_COPY_UP_TO_16, "rax", "rcx")								\
	COPY(16, RELAY_COPY_16, "rax", "rcx", "xmm0")									\
	COPY(up_to_32, RELAY_COPY_UP_TO_32, "rax", "rcx", "xmm0", "xmm1")							\
	COPY(up_to_64, RELAY_COPY_UP_TO_64, "rax", "rcx", "xmm0", "xmm1", "xmm2", "xmm3")							\
	COPY(up_to_128, RELAY_COPY_UP_TO_128, "rax", "rcx", "xmm0", "xmm1", "xmm2", "xmm3")							\
	COPY(up_to_256, RELAY_COPY_UP_TO_256, "rax", "rcx", "xmm0", "xmm1", "xmm2", "xmm3")
#define RELAY_LONG_COPY(COPY) COPY(long, RELAY_COPY_LONG, "rax", "rcx", "rsi", "rdi")

/* The function for all other lengths. */
#define RELAY_COPIED_ANYHOW(call, length, ...)										\
	(__builtin_expect((length) < RELAY_REP_MOVSB_BYTES, 1) ? call##_any(__VA_ARGS__) : call##_long(__VA_ARGS__))

/* The longest record that programs copy inline. */
#define RELAY_INLINE_LENGTH_MAX (RELAY_REP_MOVSB_BYTES - 1)

RELAY_INLINE enum relay_rseq_result relay_rseq_tally(struct relay_latch *latch, uint64_t length, uint32_t cpu)
{
	RELAY_RSEQ_SECTION(
	    "movq (%[latch]), %%rax\n"
	    "movq %%rax, %%rcx\n"
	    "shrq $63, %%rcx\n"
	    "movq 8(%[latch], %%rcx, 8), %%rdx\n"
	    "addq %[length], %%rdx\n"
	    "xorl $1, %%ecx\n"
	    "movq %%rdx, 8(%[latch], %%rcx, 8)\n"
	    "incq %%rax\n"
	    "btcq $63, %%rax\n"
	    "movq %%rax, (%[latch])\n",
	    RELAY_INPUTS([latch] "r"(latch), [length] "r"(length)),
	    "rax", "rcx", "rdx")
}

RELAY_INLINE enum relay_rseq_result relay_rseq_add(int64_t *word, int64_t delta, uint32_t cpu)
{
	RELAY_RSEQ_SECTION(
	    "addq %[delta], (%[word])\n",
	    RELAY_INPUTS([word] "r"(word), [delta] "er"(delta)),
	    "rax")
}

/* Without a lock prefix, because a signal handler of this thread interrupts between instructions. */
RELAY_INLINE bool relay_local_cmpxchg(uint64_t *word, uint64_t old, uint64_t next)
{
	bool is_swapped;
	__asm__ volatile("cmpxchgq %[next], %[word]"
	                 : "=@ccz"(is_swapped), [word] "+m"(*word), "+a"(old)
	                 : [next] "r"(next)
	                 : "memory");
	return is_swapped;
}

/* Store `counted` in the second word that is not valid, at `second`, then `next` in first. */
#define RELAY_HEAD_COMMIT												\
	"movq %[counted], (%[second])\n"											\
	"movq %[next], %c[head](%[control])\n"
#define RELAY_HEAD_INPUTS												\
	[control] "r"(control), [expect] "r"(expect), [next] "r"(next), [counted] "r"(counted),				\
	    [second] "r"(second), [head] "i"(offsetof(struct relay_control, head)),	\
	    [flags] "i"(offsetof(struct relay_control, flags)), [stopped] "i"(RELAY_STOPPED)
#define RELAY_HEAD_CLOBBERS "rax"

RELAY_INLINE uint64_t relay_clock_tsc(void)
{
	uint32_t low, high, cpu;
	/* rdtscp waits for earlier loads, as lfence does, but does not delay later instructions. */
	__asm__ volatile("rdtscp" : "=a"(low), "=d"(high), "=c"(cpu) : : "memory");
	return (uint64_t)high << 32 | low;
}

/* --- record rings (ring_layout.h) --- */

/* Jump to `refused` if the ring is stopped, to `moved` if the producer position is not `expect`. */
#define RELAY_RING_CHECK												\
	"testl %[stopped], %c[flags](%[producer])\n"									\
	"jnz %l[refused]\n"											\
	"cmpq %[expect], (%[producer])\n"										\
	"jnz %l[moved]\n"

/* Store the header, then position and number of records in the tail that is not valid, then the producer position. */
#define RELAY_RING_COMMIT												\
	"movq %[header], -8(%[to])\n"											\
	"xorl %%eax, %%eax\n"												\
	"cmpq %[expect], %c[tail](%[producer])\n"									\
	"setne %%al\n"													\
	"shll $4, %%eax\n"												\
	"movq %c[tail] + 8(%[producer], %%rax), %%rcx\n"								\
	"incq %%rcx\n"													\
	"xorl $16, %%eax\n"												\
	"movq %%rcx, %c[tail] + 8(%[producer], %%rax)\n"								\
	"movq %[next], %c[tail](%[producer], %%rax)\n"									\
	"movq %[next], (%[producer])\n"

/* Of relay_rseq_ring_reserve(): jump to `moved` if producer->last is not `last`, else set it. */
#define RELAY_RING_NAME_CLAIM												\
	"cmpq %[old_last], %c[last](%[producer])\n"										\
	"jnz %l[moved]\n"												\
	"movq %[new_last], %c[last](%[producer])\n"
#define RELAY_RING_NAME_CLAIM_CLOBBERS "rax", "rcx"

/* clang-format on */
