/* SPDX-License-Identifier: MIT */
/* The clocks that time deltas are made of. */
#ifndef RELAYFS_BASE_CLOCK_H
#define RELAYFS_BASE_CLOCK_H

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

/* The CPU's counter, not before all that comes before it has been loaded. */
static inline uint64_t relay_clock_tsc(void)
{
#if defined(__x86_64__)
	uint32_t low, high, cpu;
	/* Waits for the loads before it, as lfence does, but holds up nothing that comes after it. */
	__asm__ volatile("rdtscp" : "=a"(low), "=d"(high), "=c"(cpu) : : "memory");
	return (uint64_t)high << 32 | low;
#elif defined(__aarch64__)
	uint64_t count;
	__asm__ volatile("isb; mrs %0, cntvct_el0" : "=r"(count) : : "memory");
	return count;
#else
	return 0;
#endif
}

/* Nanoseconds, or the counter. */
static inline uint64_t relay_clock_now(uint32_t timestamp)
{
	return timestamp == RELAY_TSC ? relay_clock_tsc() : relay_clock_ns(CLOCK_MONOTONIC);
}

/* The same for threads that may be blind (base/quiet.h): the time of the last tick then, but never before relay_clock_saw(). Those have
 * no counter. */
uint64_t relay_clock_now_if_blind(uint32_t timestamp);
void relay_clock_saw(uint64_t mono_ns);

/* Both clocks at one moment. */
struct relay_moment {
	uint64_t time_ns; /* CLOCK_REALTIME */
	uint64_t clock;   /* as relay_clock_now() has it */
};
struct relay_moment relay_clock_moment(uint32_t timestamp);

#endif
