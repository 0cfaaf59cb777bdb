/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "base/wait_set.h"

#include <errno.h>
#include <relayfs/store.h>
#include <stdlib.h>

enum { SILENT_MS = 50 };

/* waited_for: NULL: the slot is empty; sleeps: its counter is slept on; seen: its glance when it was put there */
struct slot {
	const void *waited_for;
	struct relay_armed armed;
	uint32_t seq;
	bool sleeps;
	relay_glance *glance;
	uint64_t seen;
};

struct relay_wait_set {
	struct slot slots[RELAY_WAIT_SET_SLOTS];
};

_Static_assert((int)RELAY_WAIT_SET_SLOTS < (int)RELAY_MAX_WORDS, "one word is for `stop`");

struct relay_wait_set *relay_wait_set_new(void)
{
	return calloc(1, sizeof(struct relay_wait_set));
}

void relay_wait_set_free(struct relay_wait_set *set)
{
	free(set);
}

void relay_wait_set_put(struct relay_wait_set *set, uint32_t slot, const void *waited_for, struct relay_armed armed,
                        uint32_t seq, relay_glance *glance)
{
	set->slots[slot] = (struct slot){waited_for, armed, seq, true, glance, glance(waited_for)};
}

void relay_wait_set_rest(struct relay_wait_set *set, uint32_t slot)
{
	set->slots[slot].sleeps = false;
}

void relay_wait_set_clear(struct relay_wait_set *set, uint32_t slot)
{
	set->slots[slot] = (struct slot){0};
}

static bool is_silent(const struct slot *slot)
{
	/* Relaxed: relay_silence() wakes the readers that have not seen the flag. */
	return __atomic_load_n(slot->armed.flags, __ATOMIC_RELAXED) & RELAY_SILENT;
}

int relay_wait_set_sleep(const struct relay_wait_set *set, uint32_t *stop, uint32_t stop_value, int timeout_ms)
{
	struct relay_futex words[RELAY_MAX_WORDS];
	bool any_silent = false;
	size_t n = 0;
	for (const struct slot *slot = set->slots; slot < set->slots + RELAY_WAIT_SET_SLOTS; slot++) {
		if (!slot->sleeps)
			continue;
		words[n++] = (struct relay_futex){slot->armed.seq, slot->seq};
		any_silent |= is_silent(slot);
	}
	if (any_silent && (timeout_ms < 0 || timeout_ms > SILENT_MS))
		timeout_ms = SILENT_MS;
	return relay_wait_armed(words, n, stop, stop_value, timeout_ms);
}

uint32_t relay_wait_set_woken(const struct relay_wait_set *set, uint32_t *slots)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < RELAY_WAIT_SET_SLOTS; i++) {
		const struct slot *slot = &set->slots[i];
		if (slot->sleeps && (relay_armed_seq(slot->armed) != slot->seq || is_silent(slot)))
			slots[n++] = i;
	}
	return n;
}

uint32_t relay_wait_set_changed(const struct relay_wait_set *set, uint32_t *slots)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < RELAY_WAIT_SET_SLOTS; i++) {
		const struct slot *slot = &set->slots[i];
		if (slot->waited_for && slot->glance(slot->waited_for) != slot->seen)
			slots[n++] = i;
	}
	return n;
}
