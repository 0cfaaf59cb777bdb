/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "base/pace.h"

#include <errno.h>
#include <sched.h>
#include <time.h>

/* The most times in a row that a reader gives up its CPU instead of taking a nap: about 30 us on a machine of 2024. */
enum { YIELDS = 64 };

static int64_t now_us(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000ll + now.tv_nsec / 1000;
}

static int nap(int64_t us)
{
	return nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL) ? -EINTR : 1;
}

int relay_pace(struct relay_pace *pace, uint64_t position, uint64_t size)
{
	pace->n_yielded = position == pace->seen_at ? pace->n_yielded + 1 : 1;
	pace->seen_at = position;
	/* If an eighth of the buffer was consumed since the last nap, producers might fill it during the next one. */
	if (position - pace->napped_at >= size / 8 && pace->n_yielded <= YIELDS) {
		sched_yield();
		return 1;
	}
	pace->napped_at = position;
	int64_t passed = now_us() - pace->armed_us;
	if (passed >= 0 && passed < RELAY_ARM_EVERY_US)
		return nap(RELAY_ARM_EVERY_US - passed < RELAY_NAP_US ? RELAY_ARM_EVERY_US - passed : RELAY_NAP_US);
	pace->armed_us += passed;
	return 0;
}
