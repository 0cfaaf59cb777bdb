/* SPDX-License-Identifier: MIT */
/*
 * An id consists of an index in a table and a generation, which counts the uses of the entry. The table is never freed,
 * so a thread first takes a reference, by one addition, and then checks the generation.
 *
 *     holders:   generation (32 bits) | VALID | USED | number of references (30 bits)
 */
#define _GNU_SOURCE
#include "channel/ids.h"

enum { PLACES = 1024, GENERATIONS = 1 << 20 };

#define VALID (1ull << 31)
#define USED (1ull << 30)
#define HOLDERS (USED - 1)

static struct relay_classic places[PLACES];

static uint64_t generation(uint64_t holders)
{
	return holders >> 32;
}

struct relay_classic *relay_ids_take(void)
{
	for (int i = 0; i < PLACES; i++) {
		struct relay_classic *classic = &places[i];
		uint64_t old = __atomic_load_n(&classic->holders, __ATOMIC_ACQUIRE);
		uint64_t next = (generation(old) + 1) % GENERATIONS << 32 | USED | 1;
		if (old & (VALID | USED | HOLDERS) || !__atomic_compare_exchange_n(&classic->holders, &old, next, false,
		                                                                   __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
			continue;
		classic->chan = NULL;
		classic->id = (int)(generation(next) * PLACES + (unsigned)i);
		return classic;
	}
	return NULL;
}

void relay_ids_publish(struct relay_classic *classic)
{
	/* Pairs with the acquire in relay_ids_hold(): the fields of the channel before VALID. */
	__atomic_fetch_or(&classic->holders, VALID, __ATOMIC_RELEASE);
}

struct relay_classic *relay_ids_hold(int id)
{
	if (id < 0)
		return NULL;
	struct relay_classic *classic = &places[id % PLACES];
	uint64_t holders = __atomic_fetch_add(&classic->holders, 1, __ATOMIC_ACQUIRE);
	if (__builtin_expect(holders & VALID && generation(holders) == (unsigned)id / PLACES, 1))
		return classic;
	relay_ids_drop(classic);
	return NULL;
}

void relay_ids_withdraw(struct relay_classic *classic)
{
	__atomic_fetch_and(&classic->holders, ~VALID, __ATOMIC_RELEASE);
}

void relay_ids_drop(struct relay_classic *classic)
{
	uint64_t holders = __atomic_sub_fetch(&classic->holders, 1, __ATOMIC_ACQ_REL);
	if (__builtin_expect(holders & (VALID | HOLDERS), 1))
		return;
	struct rchan *chan = classic->chan;
	/* A reference taken by a wrong id may be dropped at the same time: only one of the two threads frees the channel. */
	if (holders & USED &&
	    __atomic_compare_exchange_n(&classic->holders, &holders, holders & ~USED, false, __ATOMIC_ACQ_REL,
	                                __ATOMIC_RELAXED) &&
	    chan)
		relay_chan_free(chan);
}
