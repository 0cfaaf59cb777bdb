/* SPDX-License-Identifier: MIT */
/*
 * The restartable sections for arm64; base/rseq.h says what they do. Only base/rseq.h includes this.
 *
 * The last store of a section is a store-release: all that the section stored before it is visible first.
 */

/* The signature before the abort handlers, for C libraries that do not define it; the same as glibc's. */
#ifndef RSEQ_SIG
#define RSEQ_SIG 0xd428bc00
#endif

/* One instruction a line: */
/* clang-format off */

/* A section's descriptor (struct rseq_cs), its entry, and its abort handler behind the registered signature. */
#define RELAY_RSEQ_ENTER                                                                                              \
	".pushsection __rseq_cs, \"aw\"\n"                                                                             \
	".balign 32\n"                                                                                                 \
	"3: .long 0, 0\n"                                                                                              \
	".quad 1f, (2f - 1f), 4f\n"                                                                                    \
	".popsection\n"                                                                                                \
	"adrp x9, 3b\n"                                                                                                \
	"add x9, x9, :lo12:3b\n"                                                                                       \
	"str x9, [%[rseq], %[rseq_cs]]\n"                                                                              \
	"1:\n"                                                                                                         \
	"ldr w9, [%[rseq], %[cpu_id]]\n"                                                                               \
	"cmp w9, %w[cpu]\n"                                                                                            \
	"b.ne 4f\n"

#define RELAY_RSEQ_LEAVE                                                                                              \
	"2:\n"                                                                                                         \
	".pushsection __rseq_failure, \"ax\"\n"                                                                        \
	".inst 0xd428bc00\n"                                                                                           \
	"4: b %l[aborted]\n"                                                                                           \
	".popsection\n"

#define RELAY_RSEQ_INPUTS                                                                                             \
	[rseq] "r"(relay_rseq_area()), [cpu] "r"(cpu), [rseq_cs] "i"(offsetof(struct rseq, rseq_cs)),                  \
	    [cpu_id] "i"(offsetof(struct rseq, cpu_id))

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
#define RELAY_RECORD_COMMIT												\
	"lsr x9, %[expect], #63\n"											\
	"add x10, %[head], x9, lsl #3\n"										\
	"ldr x11, [x10, #8]\n"												\
	"lsr x12, x11, %[owner_shift]\n"										\
	"cbnz x12, %l[moved]\n"												\
	"add x11, x11, #1\n"												\
	"eor x9, x9, #1\n"												\
	"add x10, %[head], x9, lsl #3\n"										\
	"str x11, [x10, #8]\n"												\
	"stlr %[next], [%[head]]\n"

#define RELAY_RECORD_INPUTS												\
	[head] "r"(&control->head), [flags] "r"(&control->flags), [expect] "r"(expect), [next] "r"(next), [to] "r"(to),	\
	    [from] "r"(from), [length] "r"(length), [stopped] "i"(RELAY_STOPPED), [owner_shift] "i"(RELAY_OWNER_SHIFT)

#define RELAY_COPY_CLOBBERS "x9", "x10", "x11", "x12", "x13"

static inline __attribute__((always_inline)) enum relay_rseq_result
relay_rseq_record(struct relay_control *control, uint64_t expect, uint64_t next, void *to, const void *from,
                  uint64_t length, uint32_t cpu)
{
	RELAY_RSEQ_SECTION(RELAY_RECORD_CHECK RELAY_COPY RELAY_RECORD_COMMIT, RELAY_INPUTS(RELAY_RECORD_INPUTS),
	    RELAY_COPY_CLOBBERS)
}

static inline __attribute__((always_inline)) enum relay_rseq_result
relay_rseq_stamped_record(struct relay_control *control, uint64_t expect, uint64_t next, void *to, uint64_t stamp,
                          const void *from, uint64_t length, uint32_t cpu)
{
	to = (char *)to + sizeof(stamp);
	RELAY_RSEQ_SECTION(RELAY_RECORD_CHECK RELAY_RECORD_STAMP RELAY_COPY RELAY_RECORD_COMMIT,
	    RELAY_INPUTS(RELAY_RECORD_INPUTS, [stamp] "r"(stamp)), RELAY_COPY_CLOBBERS)
}

static inline enum relay_rseq_result relay_rseq_change(struct relay_latch *latch, const uint32_t *flags,
                                                       const struct relay_tx *tx, uint32_t cpu)
{
	RELAY_RSEQ_SECTION(
	    "ldr w9, [%[tx], %[refuse]]\n"
	    "ldr w10, [%[flags]]\n"
	    "tst w9, w10\n"
	    "b.ne %l[refused]\n"
	    "ldr x9, [%[tx], %[expect_first]]\n"
	    "ldr x10, [%[latch]]\n"
	    "cmp x9, x10\n"
	    "b.ne %l[moved]\n"
	    "lsr x9, x9, #63\n"
	    "add x10, %[latch], x9, lsl #3\n"
	    "ldr x10, [x10, #8]\n"
	    "ldr x11, [%[tx], %[expect_second]]\n"
	    "cmp x10, x11\n"
	    "b.ne %l[moved]\n"
	    "ldr x10, [%[tx], %[store]]\n"
	    "ldr x11, [%[tx], %[store] + 8]\n"
	    "str x11, [x10]\n"
	    "ldr x10, [%[tx], %[store] + 16]\n"
	    "ldr x11, [%[tx], %[store] + 24]\n"
	    "str x11, [x10]\n"
	    "ldr x10, [%[tx], %[store] + 32]\n"
	    "ldr x11, [%[tx], %[store] + 40]\n"
	    "str x11, [x10]\n"
	    "eor x9, x9, #1\n"
	    "add x10, %[latch], x9, lsl #3\n"
	    "ldr x11, [%[tx], %[new_second]]\n"
	    "str x11, [x10, #8]\n"
	    "ldr x11, [%[tx], %[new_first]]\n"
	    "stlr x11, [%[latch]]\n",
	    RELAY_INPUTS([latch] "r"(latch), [flags] "r"(flags), [tx] "r"(tx),
	        [refuse] "i"(offsetof(struct relay_tx, refuse)),
	        [expect_first] "i"(offsetof(struct relay_tx, expect_first)),
	        [expect_second] "i"(offsetof(struct relay_tx, expect_second)),
	        [new_first] "i"(offsetof(struct relay_tx, new_first)),
	        [new_second] "i"(offsetof(struct relay_tx, new_second)), [store] "i"(offsetof(struct relay_tx, store))),
	    "x9", "x10", "x11")
}

static inline enum relay_rseq_result relay_rseq_transact(struct relay_latch *latch, const uint32_t *flags,
                                                         const struct relay_tx *tx, uint32_t cpu)
{
	enum relay_rseq_result result = relay_rseq_change(latch, flags, tx, cpu);
	/* The caller's next stores go into a sub-buffer that readers may still copy. The fence orders them after the switch. */
	if (result == RELAY_RSEQ_DONE)
		__atomic_thread_fence(__ATOMIC_SEQ_CST);
	return result;
}

static inline enum relay_rseq_result relay_rseq_tally(struct relay_latch *latch, uint64_t length, uint32_t cpu)
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

static inline enum relay_rseq_result relay_rseq_add(int64_t *word, int64_t delta, uint32_t cpu)
{
	RELAY_RSEQ_SECTION(
	    "ldr x9, [%[word]]\n"
	    "add x9, x9, %[delta]\n"
	    "str x9, [%[word]]\n",
	    RELAY_INPUTS([word] "r"(word), [delta] "r"(delta)),
	    "x9")
}

/* --- record rings (ring_layout.h) --- */

static inline enum relay_rseq_result relay_rseq_store_passed(struct relay_latch *latch, uint64_t expect, uint64_t next,
                                                             uint64_t records, uint64_t *word, uint64_t passed, uint32_t cpu)
{
	uint64_t *second = &latch->second[!(expect >> 63)];
	RELAY_RSEQ_SECTION(
	    "ldr x9, [%[latch]]\n"
	    "cmp x9, %[expect]\n"
	    "b.ne %l[moved]\n"
	    "str %[records], [%[second]]\n"
	    "str %[passed], [%[word]]\n"
	    "stlr %[next], [%[latch]]\n",
	    RELAY_INPUTS([latch] "r"(latch), [expect] "r"(expect), [next] "r"(next), [second] "r"(second),
	        [records] "r"(records), [word] "r"(word), [passed] "r"(passed)),
	    "x9")
}

static inline enum relay_rseq_result relay_rseq_pass(struct relay_latch *latch, uint64_t expect, uint64_t next,
                                                     uint64_t records, uint64_t *word, uint64_t passed, uint32_t cpu)
{
	enum relay_rseq_result result = relay_rseq_store_passed(latch, expect, next, records, word, passed, cpu);
	/* The caller's next stores overwrite a record that a reader may still copy. The fence orders them after the stores above. */
	if (result == RELAY_RSEQ_DONE)
		__atomic_thread_fence(__ATOMIC_SEQ_CST);
	return result;
}

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

#define RELAY_RING_INPUTS												\
	[producer] "r"(producer), [expect] "r"(expect), [next] "r"(next), [header] "r"(header),		\
	    [to] "r"(to), [tail] "i"(offsetof(struct relay_ring_producer, tail)),					\
	    [flags] "i"(offsetof(struct relay_ring_producer, flags)), [stopped] "i"(RELAY_STOPPED)

static inline __attribute__((always_inline)) enum relay_rseq_result
relay_rseq_ring_record(struct relay_ring_producer *producer, const struct relay_ring_put *put, const void *from,
                       uint64_t length, uint32_t cpu)
{
	uint64_t expect = put->expect, next = put->next, header = put->header;
	void *to = put->to;
	RELAY_RSEQ_SECTION(RELAY_RING_CHECK RELAY_COPY RELAY_RING_COMMIT,
	    RELAY_INPUTS(RELAY_RING_INPUTS, [from] "r"(from), [length] "r"(length)),
	    RELAY_COPY_CLOBBERS)
}

static inline enum relay_rseq_result relay_rseq_ring_reserve(struct relay_ring_producer *producer,
                                                             const struct relay_ring_put *put, uint64_t last,
                                                             uint64_t new_last, uint32_t cpu)
{
	uint64_t expect = put->expect, next = put->next, header = put->header;
	void *to = put->to;
	RELAY_RSEQ_SECTION(RELAY_RING_CHECK
	    "ldr x9, [%[producer], %[last]]\n"
	    "cmp x9, %[old]\n"
	    "b.ne %l[moved]\n"
	    "str %[new], [%[producer], %[last]]\n"
	    RELAY_RING_COMMIT,
	    RELAY_INPUTS(RELAY_RING_INPUTS, [old] "r"(last), [new] "r"(new_last),
	        [last] "i"(offsetof(struct relay_ring_producer, last))),
	    "x9", "x10", "x11")
}

/* clang-format on */
