/* SPDX-License-Identifier: MIT */
/* Run on one CPU for a moment: what is stored to a restartable buffer from elsewhere must be stored there. */
#ifndef RELAYFS_BASE_AFFINITY_H
#define RELAYFS_BASE_AFFINITY_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

/* As many as Linux can have. On the stack: a signal handler that writes comes through here and must not
 * allocate. */
enum { RELAY_VISIT_CPUS = 8192 };

struct relay_visit {
	cpu_set_t before[RELAY_VISIT_CPUS / CPU_SETSIZE];
	bool active; /* there is something to restore */
};

/* Begin a visit, or, if this thread was moved away again, go on with it. 0, or -EPERM: this thread may not run there.
 * Afterwards every section that another thread had open on that CPU has ended or been restarted. */
int relay_cpu_visit(uint32_t cpu, struct relay_visit *visit);
void relay_cpu_leave(struct relay_visit *visit);

#endif
