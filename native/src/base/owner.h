/* SPDX-License-Identifier: MIT */
/* Who a thread or process is, in one word, and whether that of such a word still lives. Knows no rings. */
#ifndef RELAYFS_BASE_OWNER_H
#define RELAYFS_BASE_OWNER_H

#include <stdbool.h>
#include <stdint.h>

/* The calling thread's owner word (layout.h); async-signal-safe; right after fork(), too. */
uint64_t relay_owner_self(void);

/* The same of the whole process: it lives as long as its first thread. */
uint64_t relay_owner_process(void);

/* Changes in the child at every fork(): what a thread cached for itself is void when it differs. */
extern uint32_t relay_fork_epoch;

/* false: the thread has certainly ended. A thread of another PID namespace counts as living. */
bool relay_owner_alive(uint64_t owner);

#endif
