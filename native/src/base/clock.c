/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "base/clock.h"

#include "base/libc.h"
#include "base/quiet.h"

enum { READINGS = 4 };

#define CLOCK(number, word, description, freq, is_ordered, now, is_available, missing) \
	[number] = {word, description, missing, freq, is_ordered},
const struct relay_clock relay_clocks[] = {RELAY_CLOCKS(CLOCK)};

const struct relay_clock *relay_clock_at(uint32_t number)
{
	const bool is_one = number < sizeof(relay_clocks) / sizeof(*relay_clocks) && relay_clocks[number].word;
	return is_one ? &relay_clocks[number] : NULL;
}

int relay_clock_is_available(uint32_t number)
{
#define AVAILABLE(clock, word, description, freq, is_ordered, now, is_available, missing) \
	case clock:                                                                       \
		return is_available;
	switch (number) {
		RELAY_CLOCKS(AVAILABLE)
	default:
		return false;
	}
}

/* The latest time that this thread has seen, CLOCK_MONOTONIC. */
static __thread uint64_t seen_ns RELAY_TLS;

void relay_clock_saw(uint64_t mono_ns)
{
	if (mono_ns > seen_ns)
		seen_ns = mono_ns;
}

uint64_t relay_clock_now_if_blind(uint32_t timestamp)
{
	if (!relay_is_blind())
		return relay_clock_now(timestamp);
	relay_clock_saw(relay_clock_ns(CLOCK_MONOTONIC_COARSE));
	return seen_ns;
}

/* Read both clocks several times, and use the reading that took least time, because it was interrupted least. */
struct relay_moment relay_clock_moment(uint32_t timestamp)
{
	struct relay_moment best = {0};
	if (relay_is_blind())
		return (struct relay_moment){.time_ns = relay_clock_ns(CLOCK_REALTIME_COARSE),
		                             .clock = relay_clock_now_if_blind(timestamp)};
	uint64_t least = UINT64_MAX;
	for (int i = 0; i < READINGS; i++) {
		uint64_t before = relay_clock_now(timestamp);
		uint64_t time_ns = relay_clock_ns(CLOCK_REALTIME);
		uint64_t around = relay_clock_now(timestamp) - before;
		if (around < least) {
			least = around;
			best = (struct relay_moment){.time_ns = time_ns, .clock = before + around / 2};
		}
	}
	return best;
}
