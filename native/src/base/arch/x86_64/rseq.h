/* SPDX-License-Identifier: MIT */
/* Sections of the library for x86-64, in addition to those of <relayfs/inline/rseq_x86_64.h>; base/rseq.h says what they do. Only
 * base/rseq.h includes this. */

/* One instruction a line: */
/* clang-format off */

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
