/* SPDX-License-Identifier: MIT */
/* A call on another stack: base/stack.c says when. */
#ifndef RELAYFS_BASE_ARCH_AARCH64_STACK_H
#define RELAYFS_BASE_ARCH_AARCH64_STACK_H

/* x19, which a callee keeps, holds the caller's stack meanwhile. */
static inline void relay_call_on(void *top, void (*run)(void *arg), void *arg)
{
	register void *first __asm__("x0") = arg;
	register void *to __asm__("x9") = top;
	register void (*call)(void *) __asm__("x10") = run;
	__asm__ volatile("mov x19, sp\n\t"
	                 "mov sp, %[to]\n\t"
	                 "blr %[call]\n\t"
	                 "mov sp, x19"
	                 : "+r"(first), [to] "+r"(to), [call] "+r"(call)
	                 :
	                 : "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x11", "x12", "x13", "x14", "x15", "x16",
	                   "x17", "x19", "x30", "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v16",
	                   "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29",
	                   "v30", "v31");
}

#endif
