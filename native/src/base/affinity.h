/* SPDX-License-Identifier: MIT */
/* Move the calling thread to one CPU for a moment, because a buffer of scheme rseq may be changed on its own CPU only. */
#ifndef RELAYFS_BASE_AFFINITY_H
#define RELAYFS_BASE_AFFINITY_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

/* As many CPUs as Linux can have. The set lies on the stack, because a signal handler that writes must not allocate memory. */
enum { RELAY_AFFINITY_CPUS = 8192 };

struct relay_affinity {
	cpu_set_t before[RELAY_AFFINITY_CPUS / CPU_SETSIZE];
	bool active; /* `before` is to be restored */
};

/* Have this thread run on a CPU, again if it was moved away since. 0, or -EPERM: it may not run there. On return, every
 * restartable section that another thread was in on that CPU has ended or been aborted. */
int relay_migrate(uint32_t cpu, struct relay_affinity *affinity);

/* Let it run where it could before. */
void relay_migrate_back(struct relay_affinity *affinity);

#endif
