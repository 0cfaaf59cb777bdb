/* SPDX-License-Identifier: MIT */
/* Private memory in which a thread makes one record that is too long for its stack. All functions leave
 * errno as it was. */
#ifndef RELAYFS_BASE_SCRATCH_H
#define RELAYFS_BASE_SCRATCH_H

#include <stddef.h>

enum { RELAY_SCRATCH_BYTES = 65536 + 64 };

/* Take a piece of RELAY_SCRATCH_BYTES, aligned for any type. Returns NULL if all pieces are in use or there is no
 * memory. Async-signal-safe; never waits. */
void *relay_scratch_take(void);

/* Map memory for a record of any number of bytes up to half the address space, by a system call. Returns NULL if
 * there is none. Async-signal-safe. */
void *relay_scratch_map(size_t bytes);

/* Give back what relay_scratch_take() or relay_scratch_map() returned; makes a system call in the second case. */
void relay_scratch_give_back(void *piece);

/* Map the memory now, so that relay_scratch_take() makes no system call. */
void relay_scratch_prepare(void);

/* Mark all pieces as free, in the child of a fork(), because the threads that had taken them are in the parent. */
void relay_scratch_forget(void);

#endif
