/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "base/pace.h"

#include "base/cpu.h"

#include <errno.h>
#include <sched.h>
#include <time.h>

enum {
	/* The most times in a row that a reader gives up its CPU instead of taking a nap: about 30 us on a machine of
	 * 2024. */
	YIELDS = 64,
	/* A look at which a reader finds so much pays for the cache lines that it moves. */
	ENOUGH_BYTES = 8192,
	/* The longest wait before a look: 1 to 6 us, because the instruction takes 10 to 50 ns. */
	MAX_PAUSES = 127
};

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

void relay_before_look(struct relay_look *look, uint64_t position)
{
	uint64_t found = position - look->at;
	look->at = position;
	if (found == 0)
		look->n_pauses = 0;
	else if (found >= ENOUGH_BYTES)
		look->n_pauses /= 2;
	else
		look->n_pauses = look->n_pauses < MAX_PAUSES / 2 ? 2 * look->n_pauses + 1 : MAX_PAUSES;
	for (uint32_t i = 0; i < look->n_pauses; i++)
		relay_relax();
}
