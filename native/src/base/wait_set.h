/* SPDX-License-Identifier: MIT */
/* Sleeping on many buffers and rings; <relayfs/store.h> describes the functions of struct relay_wait_set. */
#ifndef RELAYFS_BASE_WAIT_SET_H
#define RELAYFS_BASE_WAIT_SET_H

#include "base/arm.h"

/* Return a number that is the same as long as nothing has changed that decides what there is to read in a buffer or ring, and
 * what room. */
typedef uint64_t relay_glance(const void *waited_for);

struct relay_wait_set;

/* Put a buffer or ring into a slot. `armed` and `glance` are its own. */
void relay_wait_set_put(struct relay_wait_set *set, uint32_t slot, const void *waited_for, struct relay_armed armed,
                        uint32_t seq, relay_glance *glance);

/* Return a number that depends on all of `so_far` and `word`. */
static inline uint64_t relay_mix(uint64_t so_far, uint64_t word)
{
	uint64_t mixed = (so_far ^ word) * 0x9e3779b97f4a7c15ull; /* 2^64 divided by the golden ratio, odd */
	return mixed ^ mixed >> 29;
}

#endif
