/* SPDX-License-Identifier: MIT */
/* Move the calling thread to one CPU for a short time, because a buffer of scheme rseq may be changed on its own CPU
 * only. */
#ifndef RELAYFS_BASE_AFFINITY_H
#define RELAYFS_BASE_AFFINITY_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

/* Linux supports no more CPUs than this. */
enum { RELAY_AFFINITY_CPUS = 8192 };

/* Callers put it on the stack, because a signal handler that writes must not allocate memory. */
struct relay_affinity {
	cpu_set_t before[RELAY_AFFINITY_CPUS / CPU_SETSIZE]; /* the CPUs that the thread was allowed before */
	bool active;                                         /* `before` is to be restored */
};

/*
 * Restrict the calling thread to `cpu`, and save in `affinity` which CPUs it was allowed before, unless an earlier call
 * has saved them (affinity->active). Returns 0, or -EPERM: the thread may not run on `cpu`. On return, every
 * restartable section that another thread was in on `cpu` has ended or been aborted, because this thread has run there
 * since.
 */
int relay_migrate(uint32_t cpu, struct relay_affinity *affinity);

/* Return a number that no CPU's reaches, also where relay_n_possible_cpus() can only guess, as without /sys. */
unsigned relay_n_cpus_most(void);

/* Allow the calling thread the CPUs that relay_migrate() saved, if it saved any. */
void relay_migrate_back(struct relay_affinity *affinity);

#endif
