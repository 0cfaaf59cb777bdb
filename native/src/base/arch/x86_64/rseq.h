/* SPDX-License-Identifier: MIT */
/*
 * The restartable sections for x86-64; base/rseq.h says what they do. Only base/rseq.h includes this.
 *
 * Stores become visible in program order on x86 (TSO), so the last store of a section is a plain one.
 */

/* The signature before the abort handlers, for C libraries that do not define it; the same as glibc's. */
#ifndef RSEQ_SIG
#define RSEQ_SIG 0x53053053
#endif

/* One instruction a line: */
/* clang-format off */

/* A section's descriptor (struct rseq_cs), its entry, and its abort handler behind the signature that glibc
 * registered: "ud1 0x53053053(%rip), %edi", so that disassemblers stay in step. */
#define RELAY_RSEQ_ENTER                                                                                              \
	".pushsection __rseq_cs, \"aw\"\n"                                                                             \
	".balign 32\n"                                                                                                 \
	"3: .long 0, 0\n"                                                                                              \
	".quad 1f, (2f - 1f), 4f\n"                                                                                    \
	".popsection\n"                                                                                                \
	"leaq 3b(%%rip), %%rax\n"                                                                                      \
	"movq %%rax, %c[rseq_cs](%[rseq])\n"                                                                           \
	"1:\n"                                                                                                         \
	"cmpl %[cpu], %c[cpu_id](%[rseq])\n"                                                                           \
	"jnz 4f\n"

#define RELAY_RSEQ_LEAVE                                                                                              \
	"2:\n"                                                                                                         \
	".pushsection __rseq_failure, \"ax\"\n"                                                                        \
	".byte 0x0f, 0xb9, 0x3d\n"                                                                                     \
	".long %c[signature]\n"                                                                                        \
	"4: jmp %l[aborted]\n"                                                                                         \
	".popsection\n"

#define RELAY_RSEQ_INPUTS                                                                                             \
	[rseq] "r"(relay_rseq_area()), [cpu] "r"(cpu), [rseq_cs] "i"(offsetof(struct rseq, rseq_cs)),                  \
	    [cpu_id] "i"(offsetof(struct rseq, cpu_id)), [signature] "i"(RSEQ_SIG)

/* Jump to `refused` if the buffer is stopped, to `moved` if head.first is not `expect`. */
#define RELAY_RECORD_CHECK                                                                                            \
	"testl %[stopped], %c[flags](%[control])\n"                                                                    \
	"jnz %l[refused]\n"                                                                                      \
	"cmpq %[expect], %c[head](%[control])\n"                                                                       \
	"jnz %l[moved]\n"

/* Store the first 8 bytes of the record, which end at `to`. */
#define RELAY_RECORD_STAMP "movq %[stamp], -8(%[to])\n"

/* Store second[t] + 1 in second[!t], then `next` in first; t: the top bit of `expect`. `moved`: second[t] names a claim. */
#define RELAY_RECORD_COMMIT                                                                                   \
	"movq %[expect], %%rax\n"                                                                             \
	"shrq $63, %%rax\n"                                                                                   \
	"cmpw $0, %c[head] + 14(%[control], %%rax, 8)\n"                                                      \
	"jnz %l[moved]\n"                                                                                     \
	"movq %c[head] + 8(%[control], %%rax, 8), %%rcx\n"                                                    \
	"incq %%rcx\n"                                                                                        \
	"xorl $1, %%eax\n"                                                                                    \
	"movq %%rcx, %c[head] + 8(%[control], %%rax, 8)\n"                                                    \
	"movq %[next], %c[head](%[control])\n"

#define RELAY_RECORD_INPUTS                                                                                           \
	[control] "r"(control), [expect] "r"(expect), [next] "r"(next), [to] "r"(to), [from] "r"(from),                \
	    [length] "r"(length), [head] "i"(offsetof(struct relay_control, head)),                                    \
	    [flags] "i"(offsetof(struct relay_control, flags)), [stopped] "i"(RELAY_STOPPED),                          \
	    [owner_shift] "i"(RELAY_OWNER_SHIFT)

/* From this length on `rep movsb` is faster than 16-byte moves. */
enum { RELAY_REP_MOVSB_BYTES = 768 };

/* For lengths below RELAY_REP_MOVSB_BYTES: pairs of overlapping moves up to 64 bytes, then 64 bytes at a time. */
#define RELAY_COPY_SHORT												\
	"cmpq $16, %[length]\n"												\
	"jb 10f\n"													\
	"cmpq $32, %[length]\n"												\
	"ja 12f\n"													\
	"movups (%[from]), %%xmm0\n"                       /* 16 .. 32 */						\
	"movups -16(%[from], %[length]), %%xmm1\n"									\
	"movups %%xmm0, (%[to])\n"											\
	"movups %%xmm1, -16(%[to], %[length])\n"									\
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
	"movups (%[from]), %%xmm0\n"                       /* 33 .. 64 */						\
	"movups 16(%[from]), %%xmm1\n"											\
	"movups -32(%[from], %[length]), %%xmm2\n"									\
	"movups -16(%[from], %[length]), %%xmm3\n"									\
	"movups %%xmm0, (%[to])\n"											\
	"movups %%xmm1, 16(%[to])\n"											\
	"movups %%xmm2, -32(%[to], %[length])\n"									\
	"movups %%xmm3, -16(%[to], %[length])\n"									\
	"jmp 19f\n"													\
	"14: leaq -64(%[length]), %%rcx\n"                 /* 65 and more: the last 64 may overlap */			\
	"xorl %%eax, %%eax\n"												\
	"15: movups (%[from], %%rax), %%xmm0\n"										\
	"movups 16(%[from], %%rax), %%xmm1\n"										\
	"movups 32(%[from], %%rax), %%xmm2\n"										\
	"movups 48(%[from], %%rax), %%xmm3\n"										\
	"movups %%xmm0, (%[to], %%rax)\n"										\
	"movups %%xmm1, 16(%[to], %%rax)\n"										\
	"movups %%xmm2, 32(%[to], %%rax)\n"										\
	"movups %%xmm3, 48(%[to], %%rax)\n"										\
	"addq $64, %%rax\n"												\
	"cmpq %%rcx, %%rax\n"												\
	"jb 15b\n"													\
	"movups (%[from], %%rcx), %%xmm0\n"										\
	"movups 16(%[from], %%rcx), %%xmm1\n"										\
	"movups 32(%[from], %%rcx), %%xmm2\n"										\
	"movups 48(%[from], %%rcx), %%xmm3\n"										\
	"movups %%xmm0, (%[to], %%rcx)\n"										\
	"movups %%xmm1, 16(%[to], %%rcx)\n"										\
	"movups %%xmm2, 32(%[to], %%rcx)\n"										\
	"movups %%xmm3, 48(%[to], %%rcx)\n"										\
	"19:\n"

#define RELAY_COPY_LONG													\
	"movq %[to], %%rdi\n"												\
	"movq %[from], %%rsi\n"												\
	"movq %[length], %%rcx\n"											\
	"rep movsb\n"

#define RELAY_COPY_SHORT_CLOBBERS "rax", "rcx", "xmm0", "xmm1", "xmm2", "xmm3"
#define RELAY_COPY_LONG_CLOBBERS "rax", "rcx", "rsi", "rdi"

static inline __attribute__((always_inline)) enum relay_rseq_result
relay_rseq_record_short(struct relay_control *control, uint64_t expect, uint64_t next, void *to, const void *from,
                        uint64_t length, uint32_t cpu)
{
	RELAY_RSEQ_SECTION(RELAY_RECORD_CHECK RELAY_COPY_SHORT RELAY_RECORD_COMMIT,
	    RELAY_INPUTS(RELAY_RECORD_INPUTS), RELAY_COPY_SHORT_CLOBBERS)
}

static inline __attribute__((always_inline)) enum relay_rseq_result
relay_rseq_record_long(struct relay_control *control, uint64_t expect, uint64_t next, void *to, const void *from,
                       uint64_t length, uint32_t cpu)
{
	RELAY_RSEQ_SECTION(RELAY_RECORD_CHECK RELAY_COPY_LONG RELAY_RECORD_COMMIT,
	    RELAY_INPUTS(RELAY_RECORD_INPUTS), RELAY_COPY_LONG_CLOBBERS)
}

static inline __attribute__((always_inline)) enum relay_rseq_result
relay_rseq_record(struct relay_control *control, uint64_t expect, uint64_t next, void *to, const void *from,
                  uint64_t length, uint32_t cpu)
{
	if (__builtin_expect(length < RELAY_REP_MOVSB_BYTES, 1))
		return relay_rseq_record_short(control, expect, next, to, from, length, cpu);
	return relay_rseq_record_long(control, expect, next, to, from, length, cpu);
}

static inline __attribute__((always_inline)) enum relay_rseq_result
relay_rseq_stamped_short(struct relay_control *control, uint64_t expect, uint64_t next, void *to, uint64_t stamp,
                         const void *from, uint64_t length, uint32_t cpu)
{
	RELAY_RSEQ_SECTION(RELAY_RECORD_CHECK RELAY_RECORD_STAMP RELAY_COPY_SHORT RELAY_RECORD_COMMIT,
	    RELAY_INPUTS(RELAY_RECORD_INPUTS, [stamp] "r"(stamp)), RELAY_COPY_SHORT_CLOBBERS)
}

static inline __attribute__((always_inline)) enum relay_rseq_result
relay_rseq_stamped_long(struct relay_control *control, uint64_t expect, uint64_t next, void *to, uint64_t stamp,
                        const void *from, uint64_t length, uint32_t cpu)
{
	RELAY_RSEQ_SECTION(RELAY_RECORD_CHECK RELAY_RECORD_STAMP RELAY_COPY_LONG RELAY_RECORD_COMMIT,
	    RELAY_INPUTS(RELAY_RECORD_INPUTS, [stamp] "r"(stamp)), RELAY_COPY_LONG_CLOBBERS)
}

static inline __attribute__((always_inline)) enum relay_rseq_result
relay_rseq_stamped_record(struct relay_control *control, uint64_t expect, uint64_t next, void *to, uint64_t stamp,
                          const void *from, uint64_t length, uint32_t cpu)
{
	to = (char *)to + sizeof(stamp);
	if (__builtin_expect(length < RELAY_REP_MOVSB_BYTES, 1))
		return relay_rseq_stamped_short(control, expect, next, to, stamp, from, length, cpu);
	return relay_rseq_stamped_long(control, expect, next, to, stamp, from, length, cpu);
}

static inline enum relay_rseq_result relay_rseq_transact(struct relay_latch *latch, const uint32_t *flags,
                                                         const struct relay_tx *tx, uint32_t cpu)
{
	RELAY_RSEQ_SECTION(
	    "movl %c[refuse](%[tx]), %%eax\n"
	    "testl %%eax, (%[flags])\n"
	    "jnz %l[refused]\n"
	    "movq %c[expect_first](%[tx]), %%rax\n"
	    "cmpq %%rax, (%[latch])\n"
	    "jnz %l[moved]\n"
	    "shrq $63, %%rax\n"
	    "movq %c[expect_second](%[tx]), %%rcx\n"
	    "cmpq %%rcx, 8(%[latch], %%rax, 8)\n"
	    "jnz %l[moved]\n"
	    "movq %c[store](%[tx]), %%rcx\n"
	    "movq %c[store] + 8(%[tx]), %%rdx\n"
	    "movq %%rdx, (%%rcx)\n"
	    "movq %c[store] + 16(%[tx]), %%rcx\n"
	    "movq %c[store] + 24(%[tx]), %%rdx\n"
	    "movq %%rdx, (%%rcx)\n"
	    "movq %c[store] + 32(%[tx]), %%rcx\n"
	    "movq %c[store] + 40(%[tx]), %%rdx\n"
	    "movq %%rdx, (%%rcx)\n"
	    "xorl $1, %%eax\n"
	    "movq %c[new_second](%[tx]), %%rcx\n"
	    "movq %%rcx, 8(%[latch], %%rax, 8)\n"
	    "movq %c[new_first](%[tx]), %%rcx\n"
	    "movq %%rcx, (%[latch])\n",
	    RELAY_INPUTS([latch] "r"(latch), [flags] "r"(flags), [tx] "r"(tx),
	        [refuse] "i"(offsetof(struct relay_tx, refuse)),
	        [expect_first] "i"(offsetof(struct relay_tx, expect_first)),
	        [expect_second] "i"(offsetof(struct relay_tx, expect_second)),
	        [new_first] "i"(offsetof(struct relay_tx, new_first)),
	        [new_second] "i"(offsetof(struct relay_tx, new_second)), [store] "i"(offsetof(struct relay_tx, store))),
	    "rax", "rcx", "rdx")
}

static inline enum relay_rseq_result relay_rseq_tally(struct relay_latch *latch, uint64_t length, uint32_t cpu)
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

static inline enum relay_rseq_result relay_rseq_add(int64_t *word, int64_t delta, uint32_t cpu)
{
	RELAY_RSEQ_SECTION(
	    "addq %[delta], (%[word])\n",
	    RELAY_INPUTS([word] "r"(word), [delta] "r"(delta)),
	    "rax")
}

/* --- record rings (ring_layout.h) --- */

static inline enum relay_rseq_result relay_rseq_pass(struct relay_latch *latch, uint64_t expect, uint64_t next,
                                                     uint64_t records, uint64_t *word, uint64_t passed, uint32_t cpu)
{
	uint64_t *second = &latch->second[!(expect >> 63)];
	RELAY_RSEQ_SECTION(
	    "cmpq %[expect], (%[latch])\n"
	    "jnz %l[moved]\n"
	    "movq %[records], (%[second])\n"
	    "movq %[passed], (%[word])\n"
	    "movq %[next], (%[latch])\n",
	    RELAY_INPUTS([latch] "r"(latch), [expect] "r"(expect), [next] "r"(next), [second] "r"(second),
	        [records] "r"(records), [word] "r"(word), [passed] "r"(passed)),
	    "rax")
}

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

#define RELAY_RING_INPUTS												\
	[producer] "r"(producer), [expect] "r"(expect), [next] "r"(next), [header] "r"(header),		\
	    [to] "r"(to), [tail] "i"(offsetof(struct relay_ring_producer, tail)),					\
	    [flags] "i"(offsetof(struct relay_ring_producer, flags)), [stopped] "i"(RELAY_STOPPED)

static inline __attribute__((always_inline)) enum relay_rseq_result
relay_rseq_ring_short(struct relay_ring_producer *producer, const struct relay_ring_put *put, const void *from,
                      uint64_t length, uint32_t cpu)
{
	uint64_t expect = put->expect, next = put->next, header = put->header;
	void *to = put->to;
	RELAY_RSEQ_SECTION(RELAY_RING_CHECK
	    RELAY_COPY_SHORT
	    RELAY_RING_COMMIT,
	    RELAY_INPUTS(RELAY_RING_INPUTS, [from] "r"(from), [length] "r"(length)),
	    RELAY_COPY_SHORT_CLOBBERS)
}

static inline __attribute__((always_inline)) enum relay_rseq_result
relay_rseq_ring_long(struct relay_ring_producer *producer, const struct relay_ring_put *put, const void *from,
                     uint64_t length, uint32_t cpu)
{
	uint64_t expect = put->expect, next = put->next, header = put->header;
	void *to = put->to;
	RELAY_RSEQ_SECTION(RELAY_RING_CHECK RELAY_COPY_LONG RELAY_RING_COMMIT,
	    RELAY_INPUTS(RELAY_RING_INPUTS, [from] "r"(from), [length] "m"(length)),
	    RELAY_COPY_LONG_CLOBBERS)
}

static inline __attribute__((always_inline)) enum relay_rseq_result
relay_rseq_ring_record(struct relay_ring_producer *producer, const struct relay_ring_put *put, const void *from,
                       uint64_t length, uint32_t cpu)
{
	if (__builtin_expect(length < RELAY_REP_MOVSB_BYTES, 1))
		return relay_rseq_ring_short(producer, put, from, length, cpu);
	return relay_rseq_ring_long(producer, put, from, length, cpu);
}

static inline enum relay_rseq_result relay_rseq_ring_reserve(struct relay_ring_producer *producer,
                                                             const struct relay_ring_put *put, uint64_t last,
                                                             uint64_t new_last, uint32_t cpu)
{
	uint64_t expect = put->expect, next = put->next, header = put->header;
	void *to = put->to;
	RELAY_RSEQ_SECTION(RELAY_RING_CHECK
	    "cmpq %[old], %c[last](%[producer])\n"
	    "jnz %l[moved]\n"
	    "movq %[new], %c[last](%[producer])\n"
	    RELAY_RING_COMMIT,
	    RELAY_INPUTS(RELAY_RING_INPUTS, [old] "r"(last), [new] "r"(new_last),
	        [last] "i"(offsetof(struct relay_ring_producer, last))),
	    "rax", "rcx")
}

/* clang-format on */
