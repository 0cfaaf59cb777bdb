/* SPDX-License-Identifier: MIT */
/* Sections of the library for arm64, in addition to those of <relayfs/inline/rseq_aarch64.h>; base/rseq.h says what they do. Only
 * base/rseq.h includes this. */

/* One instruction a line: */
/* clang-format off */

/* Of relay_rseq_transact(). */
#define RELAY_TRANSACT													\
	"ldr w9, [%[tx], %[refuse]]\n"											\
	"ldr w10, [%[flags]]\n"												\
	"tst w9, w10\n"													\
	"b.ne %l[refused]\n"												\
	"ldr x9, [%[tx], %[expect_first]]\n"										\
	"ldr x10, [%[latch]]\n"												\
	"cmp x9, x10\n"													\
	"b.ne %l[moved]\n"												\
	"lsr x9, x9, #63\n"												\
	"add x10, %[latch], x9, lsl #3\n"										\
	"ldr x10, [x10, #8]\n"												\
	"ldr x11, [%[tx], %[expect_second]]\n"										\
	"cmp x10, x11\n"												\
	"b.ne %l[moved]\n"												\
	"ldr x10, [%[tx], %[store]]\n"											\
	"ldr x11, [%[tx], %[store] + 8]\n"										\
	"str x11, [x10]\n"												\
	"ldr x10, [%[tx], %[store] + 16]\n"										\
	"ldr x11, [%[tx], %[store] + 24]\n"										\
	"str x11, [x10]\n"												\
	"ldr x10, [%[tx], %[store] + 32]\n"										\
	"ldr x11, [%[tx], %[store] + 40]\n"										\
	"str x11, [x10]\n"												\
	"eor x9, x9, #1\n"												\
	"add x10, %[latch], x9, lsl #3\n"										\
	"ldr x11, [%[tx], %[new_second]]\n"										\
	"str x11, [x10, #8]\n"												\
	"ldr x11, [%[tx], %[new_first]]\n"										\
	"stlr x11, [%[latch]]\n"
#define RELAY_TRANSACT_CLOBBERS "x9", "x10", "x11"

/* Of relay_rseq_records(). */
#define RELAY_RECORDS RELAY_RECORD_CHECK RELAY_COPY RELAY_RECORDS_COMMIT("add x11, x11, %[n]\n")
#define RELAY_RECORDS_CLOBBERS RELAY_COPY_CLOBBERS

/* Of relay_rseq_pass(). */
#define RELAY_PASS													\
	"ldr x9, [%[latch]]\n"												\
	"cmp x9, %[expect]\n"												\
	"b.ne %l[moved]\n"												\
	"str %[records], [%[second]]\n"											\
	"str %[passed], [%[word]]\n"											\
	"stlr %[next], [%[latch]]\n"
#define RELAY_PASS_CLOBBERS "x9"

/* The last store of a section is a store-release, which later stores may overtake. */
#define RELAY_RSEQ_IS_OVERTAKEN 1

/* clang-format on */
