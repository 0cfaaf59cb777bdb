/* SPDX-License-Identifier: MIT */
/* Memory of this process for records that are too long for a thread's stack. Knows no rings. */
#ifndef RELAYFS_BASE_SCRATCH_H
#define RELAYFS_BASE_SCRATCH_H

#include <stddef.h>

enum { RELAY_SCRATCH_BYTES = 65536 + 64 };

/* One piece of RELAY_SCRATCH_BYTES, aligned as malloc(3)'s. NULL: all are in use, or there is no memory. Async-signal-safe;
 * never waits; leaves errno as it was. */
void *relay_scratch_take(void);

/* The same for any number of bytes up to half the address space, by a system call. */
void *relay_scratch_map(size_t bytes);

/* What one of the two gave. One more system call, if it was relay_scratch_map(). */
void relay_scratch_give_back(void *piece);

/* Get the memory now, so that relay_scratch_take() makes no system call. */
void relay_scratch_prepare(void);

/* In the child of a fork(): what the parent's other threads had taken is free. */
void relay_scratch_forget(void);

#endif
