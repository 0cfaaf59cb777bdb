/* SPDX-License-Identifier: MIT */
/* A stack of the library's own, for what a thread's may be too small for. Knows no rings. */
#ifndef RELAYFS_BASE_STACK_H
#define RELAYFS_BASE_STACK_H

/*
 * Call `run` on it. One thread at a time, with asynchronous signals blocked; `run` must return. Where there is no memory for
 * it, and under sanitizers, which know one stack for each thread, `run` is called on the caller's.
 */
void relay_on_own_stack(void (*run)(void *arg), void *arg);

#endif
