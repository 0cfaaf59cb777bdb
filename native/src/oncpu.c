/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "oncpu.h"

#include <errno.h>
#include <stdlib.h>

enum { MAX_CPUS = 1 << 16 };

/* The kernel's mask may be larger than a cpu_set_t: grow until it fits. */
static int get_affinity(struct relay_visit *visit)
{
	for (int cpus = CPU_SETSIZE; cpus <= MAX_CPUS; cpus *= 2) {
		visit->bytes = CPU_ALLOC_SIZE(cpus);
		visit->before = CPU_ALLOC(cpus);
		if (!visit->before)
			return -ENOMEM;
		if (!sched_getaffinity(0, visit->bytes, visit->before))
			return 0;
		CPU_FREE(visit->before);
	}
	visit->before = NULL;
	return -EPERM;
}

int relay_cpu_visit(uint32_t cpu, struct relay_visit *visit)
{
	int err = get_affinity(visit);
	if (err)
		return err;
	cpu_set_t *there = cpu < visit->bytes * 8 ? malloc(visit->bytes) : NULL;
	if (there) {
		CPU_ZERO_S(visit->bytes, there);
		CPU_SET_S(cpu, visit->bytes, there);
		err = sched_setaffinity(0, visit->bytes, there) ? -EPERM : 0;
		free(there);
	} else {
		err = -EPERM;
	}
	if (err) {
		CPU_FREE(visit->before);
		visit->before = NULL;
	}
	return err;
}

void relay_cpu_leave(struct relay_visit *visit)
{
	if (!visit->before)
		return;
	sched_setaffinity(0, visit->bytes, visit->before);
	CPU_FREE(visit->before);
	visit->before = NULL;
}
