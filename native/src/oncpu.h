/* SPDX-License-Identifier: MIT */
/* Run on one CPU for a moment: what is stored to a restartable buffer from elsewhere must be stored there. */
#ifndef RELAYFS_ONCPU_H
#define RELAYFS_ONCPU_H

#include <sched.h>
#include <stdint.h>

struct relay_visit {
	cpu_set_t *before; /* NULL: nothing to restore */
	size_t bytes;
};

/* 0, or -EPERM: this thread may not run there. Afterwards every section that another thread had open on that
 * CPU has ended or been restarted. */
int relay_cpu_visit(uint32_t cpu, struct relay_visit *visit);
void relay_cpu_leave(struct relay_visit *visit);

#endif
