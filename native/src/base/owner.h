/* SPDX-License-Identifier: MIT */
/* Owner words: one word that identifies a thread or process (<relayfs/layout.h> has its fields), and whether that
 * thread lives. */
#ifndef RELAYFS_BASE_OWNER_H
#define RELAYFS_BASE_OWNER_H

#include <stdbool.h>
#include <stdint.h>

/* The owner word of the calling thread, also after fork(). Cached, so that it makes system calls at its first call in a
 * thread only. Async-signal-safe; leaves errno as it was. */
uint64_t relay_owner_self(void);

/* The owner word of the process, that of its first thread. */
uint64_t relay_owner_process(void);

/* Returns false only if the thread has certainly ended. Returns true for a thread of another PID namespace, which
 * cannot be checked. Makes system calls. Async-signal-safe; leaves errno as it was. */
bool relay_owner_alive(uint64_t owner);

#endif
