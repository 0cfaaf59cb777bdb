/* SPDX-License-Identifier: MIT */
/* The clocks of timestamps: CLOCK_MONOTONIC, or the CPU's counter (x86-64: time stamp counter; arm64: virtual
 * counter). */
#ifndef RELAYFS_BASE_CLOCK_H
#define RELAYFS_BASE_CLOCK_H

#include "base/cpu.h"

#include <relayfs/layout.h>
#include <sys/time.h>
#include <time.h>

static inline struct timeval relay_timeval(uint64_t ns)
{
	return (struct timeval){.tv_sec = (time_t)(ns / 1000000000u),
	                        .tv_usec = (suseconds_t)(ns % 1000000000u / 1000u)};
}

static inline uint64_t relay_clock_ns(clockid_t clock)
{
	struct timespec now;
	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The time by the clock of `timestamp` (enum relay_timestamp): the counter for RELAY_TSC, else CLOCK_MONOTONIC in
 * ns. */
static inline uint64_t relay_clock_now(uint32_t timestamp)
{
	return timestamp == RELAY_TSC ? relay_clock_tsc() : relay_clock_ns(CLOCK_MONOTONIC);
}

/* As relay_clock_now(), also in a thread that is blind (base/quiet.h): such a thread cannot read the counter, and gets
 * CLOCK_MONOTONIC_COARSE, the time of the last tick, in ns; or the latest time that it passed to relay_clock_saw(), if
 * that is later, so that its times never go back. */
uint64_t relay_clock_now_if_blind(uint32_t timestamp);
void relay_clock_saw(uint64_t mono_ns);

/* The same moment on two clocks. In a blind thread both are coarse, as above. */
struct relay_moment {
	uint64_t time_ns; /* CLOCK_REALTIME */
	uint64_t clock;   /* as relay_clock_now() returns it */
};
struct relay_moment relay_clock_moment(uint32_t timestamp);

#endif
