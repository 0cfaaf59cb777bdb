/* SPDX-License-Identifier: MIT */
/* Sections of the library for arm64, in addition to those of <relayfs/inline/rseq_aarch64.h>; base/rseq.h says what they do. Only
 * base/rseq.h includes this. */

/* One instruction a line: */
/* clang-format off */

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
