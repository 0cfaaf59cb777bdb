/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "base/affinity.h"

#include <errno.h>

int relay_cpu_visit(uint32_t cpu, struct relay_visit *visit)
{
	cpu_set_t there[RELAY_VISIT_CPUS / CPU_SETSIZE];
	if (cpu >= RELAY_VISIT_CPUS || (!visit->active && sched_getaffinity(0, sizeof(visit->before), visit->before)))
		return -EPERM;
	CPU_ZERO_S(sizeof(there), there);
	CPU_SET_S(cpu, sizeof(there), there);
	if (sched_setaffinity(0, sizeof(there), there))
		return -EPERM;
	visit->active = true;
	return 0;
}

void relay_cpu_leave(struct relay_visit *visit)
{
	if (visit->active)
		sched_setaffinity(0, sizeof(visit->before), visit->before);
	visit->active = false;
}
