/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "base/stack.h"

#include "base/arch/arch.h"

#include <stddef.h>
#include <sys/mman.h>

#include RELAY_ARCH_STACK_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

void relay_on_own_stack(void (*run)(void *arg), void *arg)
{
	run(arg);
}

#else

/* The stack grows down from its top. Its lowest GUARD_BYTES, one page or more, cannot be accessed, so that an overflow
 * faults. */
enum { STACK_BYTES = 256 * 1024, GUARD_BYTES = 64 * 1024 };

/* Returns the top of a new stack, or NULL. */
static unsigned char *map_stack(void)
{
	unsigned char *low = mmap(NULL, GUARD_BYTES + STACK_BYTES, PROT_NONE,
	                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
	if (low == MAP_FAILED)
		return NULL;
	if (mprotect(low + GUARD_BYTES, STACK_BYTES, PROT_READ | PROT_WRITE) == 0)
		return low + GUARD_BYTES + STACK_BYTES;
	munmap(low, GUARD_BYTES + STACK_BYTES);
	return NULL;
}

void relay_on_own_stack(void (*run)(void *arg), void *arg)
{
	static unsigned char *top; /* stays mapped */
	if (!top)
		top = map_stack();
	if (top)
		relay_call_on(top, run, arg);
	else
		run(arg);
}

#endif
