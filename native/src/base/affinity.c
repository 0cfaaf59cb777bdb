/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "base/affinity.h"

#include <errno.h>

int relay_migrate(uint32_t cpu, struct relay_affinity *affinity)
{
	cpu_set_t only[RELAY_AFFINITY_CPUS / CPU_SETSIZE];
	if (cpu >= RELAY_AFFINITY_CPUS ||
	    (!affinity->active && sched_getaffinity(0, sizeof(affinity->before), affinity->before)))
		return -EPERM;
	CPU_ZERO_S(sizeof(only), only);
	CPU_SET_S(cpu, sizeof(only), only);
	if (sched_setaffinity(0, sizeof(only), only))
		return -EPERM;
	affinity->active = true;
	return 0;
}

void relay_migrate_back(struct relay_affinity *affinity)
{
	if (affinity->active)
		sched_setaffinity(0, sizeof(affinity->before), affinity->before);
	affinity->active = false;
}
