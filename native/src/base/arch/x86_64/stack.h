/* SPDX-License-Identifier: MIT */
/* A call on another stack: base/stack.c says when. */
#ifndef RELAYFS_BASE_ARCH_X86_64_STACK_H
#define RELAYFS_BASE_ARCH_X86_64_STACK_H

/* rbx, which a callee keeps, holds the caller's stack meanwhile. Nothing is pushed on that one, so its red zone stays. */
static inline void relay_call_on(void *top, void (*run)(void *arg), void *arg)
{
	__asm__ volatile("movq %%rsp, %%rbx\n\t"
	                 "movq %[top], %%rsp\n\t"
	                 "callq *%[run]\n\t"
	                 "movq %%rbx, %%rsp"
	                 : "+D"(arg), [top] "+S"(top), [run] "+a"(run)
	                 :
	                 : "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "cc", "memory", "xmm0", "xmm1", "xmm2",
	                   "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13",
	                   "xmm14", "xmm15");
}

#endif
