/* SPDX-License-Identifier: MIT */
/* The clocks of timestamps. The CPU's counter is the time stamp counter of x86-64, and the virtual counter of arm64. */
#ifndef RELAYFS_BASE_CLOCK_H
#define RELAYFS_BASE_CLOCK_H

#include "base/cpu.h"

#include <relayfs/inline/rseq.h>
#include <relayfs/store.h>
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

/*
 * All clocks:
 *
 *     enum relay_timestamp, and then, as in struct relay_clock, word, description, freq and is_ordered;
 *     an expression for the time now, one that is true if this machine has the clock, and `missing`
 */
#define RELAY_CLOCKS(ROW)                                                                                       \
	ROW(RELAY_MONO, "mono", "CLOCK_MONOTONIC", 1000000000, true, relay_clock_ns(CLOCK_MONOTONIC), true, "") \
	ROW(RELAY_TSC, "tsc", "time stamp counter", 0, false, relay_clock_tsc(), relay_cpu_has_tsc(),           \
	    "this machine has no counter of constant rate")

/* The time by the clock `timestamp` (enum relay_timestamp); of any other number, CLOCK_MONOTONIC. RELAY_MONO is not
 * compared but the default, so that the function has only one call of clock_gettime(2). */
static inline uint64_t relay_clock_now(uint32_t timestamp)
{
#define RELAY_CLOCK_READ(number, word, description, freq, is_ordered, now, ...) \
	if ((number) != RELAY_MONO && timestamp == (number))                    \
		return now;
	RELAY_CLOCKS(RELAY_CLOCK_READ)
	return relay_clock_ns(CLOCK_MONOTONIC);
}

/* By enum relay_timestamp. */
extern const struct relay_clock relay_clocks[];

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
