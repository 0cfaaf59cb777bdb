/* SPDX-License-Identifier: MIT */
/* Sections of the library for x86-64, in addition to those of <relayfs/inline/rseq_x86_64.h>; base/rseq.h says what they do. Only
 * base/rseq.h includes this. */

/* One instruction a line: */
/* clang-format off */

/* Of relay_rseq_transact(). */
#define RELAY_TRANSACT													\
	"movl %c[refuse](%[tx]), %%eax\n"										\
	"testl %%eax, (%[flags])\n"											\
	"jnz %l[refused]\n"												\
	"movq %c[expect_first](%[tx]), %%rax\n"										\
	"cmpq %%rax, (%[latch])\n"											\
	"jnz %l[moved]\n"												\
	"shrq $63, %%rax\n"												\
	"movq %c[expect_second](%[tx]), %%rcx\n"									\
	"cmpq %%rcx, 8(%[latch], %%rax, 8)\n"										\
	"jnz %l[moved]\n"												\
	"movq %c[store](%[tx]), %%rcx\n"										\
	"movq %c[store] + 8(%[tx]), %%rdx\n"										\
	"movq %%rdx, (%%rcx)\n"												\
	"movq %c[store] + 16(%[tx]), %%rcx\n"										\
	"movq %c[store] + 24(%[tx]), %%rdx\n"										\
	"movq %%rdx, (%%rcx)\n"												\
	"movq %c[store] + 32(%[tx]), %%rcx\n"										\
	"movq %c[store] + 40(%[tx]), %%rdx\n"										\
	"movq %%rdx, (%%rcx)\n"												\
	"xorl $1, %%eax\n"												\
	"movq %c[new_second](%[tx]), %%rcx\n"										\
	"movq %%rcx, 8(%[latch], %%rax, 8)\n"										\
	"movq %c[new_first](%[tx]), %%rcx\n"										\
	"movq %%rcx, (%[latch])\n"
#define RELAY_TRANSACT_CLOBBERS "rax", "rcx", "rdx"

/* Of relay_rseq_records(). */
#define RELAY_RECORDS RELAY_RECORD_CHECK RELAY_COPY_LONG RELAY_RECORDS_COMMIT("addq %[n], %%rcx\n")
#define RELAY_RECORDS_CLOBBERS "rax", "rcx", "rsi", "rdi"

/* Of relay_rseq_pass(). */
#define RELAY_PASS													\
	"cmpq %[expect], (%[latch])\n"											\
	"jnz %l[moved]\n"												\
	"movq %[records], (%[second])\n"										\
	"movq %[passed], (%[word])\n"											\
	"movq %[next], (%[latch])\n"
#define RELAY_PASS_CLOBBERS "rax"

/* Stores become visible in program order. */
#define RELAY_RSEQ_IS_OVERTAKEN 0

/* clang-format on */
