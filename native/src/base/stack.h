/* SPDX-License-Identifier: MIT */
/* A stack of the library, for functions for which the calling thread's stack may be too small. */
#ifndef RELAYFS_BASE_STACK_H
#define RELAYFS_BASE_STACK_H

/*
 * Call `run` on the library's stack. Only one thread at a time may call this, with asynchronous signals blocked, and
 * `run` must return. `run` is called on the caller's stack if there is no memory for the other one, and under
 * sanitizers, which support only one stack for each thread.
 */
void relay_on_own_stack(void (*run)(void *arg), void *arg);

#endif
