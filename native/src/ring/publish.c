/* SPDX-License-Identifier: MIT */
/*
 * Scheme lockless: consumers that know only the kernel's format load the producer position, and then the headers before it.
 * Records are reserved in one order, but several CPUs store their headers in another. The position passes records in the order
 * of reservation:
 *
 *     it is here: this record's turn                        records before this one are still to be passed
 *     position = {end, n + 1}      two plain stores         ready[n % N] = end
 *     ready[n + 1] fits? drain                              membarrier
 *                                                           drain
 *
 *     drain: while ready[n] fits:  position: {pos, n} -> {ready[n], n + 1}, pos = ready[n], n++
 *
 * A record that has no entry is passed by its owner alone, so the two plain stores are never too late.
 * A producer that has moved the position checks for the next entry; a producer that makes an entry tries to move the position.
 * One of the two must see the other's store. A fence in the first one would cost as much as all its other instructions; so the
 * second one makes the kernel fence all CPUs, as in base/arm.h. That is rare, because it usually only has to wait a moment until
 * the position reaches its record. Behind a record that has an entry it is not needed: that record is passed by a
 * compare-and-swap, which is a fence.
 *
 * A producer drains before it frees its claim; if it dies before that, the reaper of its claim drains.
 *
 * {pos, n} is never loaded from `position`, because between the two plain stores the words do not belong together. The entries
 * lead from one known record to the next ones.
 */
#define _GNU_SOURCE
#include "ring/publish.h"

#include "base/futex.h"
#include "base/latch.h"
#include "base/quiet.h"

#include <errno.h>
#include <time.h>

/* How often to check whether the position has come: the record before needs only a few stores, unless its producer is
 * interrupted. */
enum { TURN_SPINS = 64, BACKOFF_SPINS = 128, SETTLE_NS = 1000000 };

/* The most entries that a reaper drains, because the file server reaps claims, too: real producers do not make so many in a row
 * meanwhile. */
enum { REAPER_DRAINS = 1 << 20 };

void relay_ring_backoff(void)
{
	for (int i = 0; i < BACKOFF_SPINS; i++)
		relay_relax();
}

static uint64_t *entry_of(const struct relay_ring *ring, uint64_t number)
{
	return &ring->ready[number % RELAY_RING_N_READY];
}

static bool has_entry(const struct relay_ring *ring, const struct relay_ring_place *place)
{
	return __atomic_load_n(entry_of(ring, place->number), __ATOMIC_ACQUIRE) == place->end;
}

/* Distance of the position from a record; negative: the position is before it. */
static int64_t passed_by(const struct relay_ring *ring, uint64_t pos)
{
	return (int64_t)(relay_ring_produced(ring) - pos);
}

static void drain_ready(struct relay_ring *ring, uint64_t pos, uint64_t number, uint64_t most)
{
	for (; most && relay_ring_is_ready(ring, number, pos); most--) {
		uint64_t end = __atomic_load_n(entry_of(ring, number), __ATOMIC_ACQUIRE);
		uint64_t next = (number + 1) & RELAY_RECORDS_MASK;
		/* If the position is before the record, the producer that moves it here finds the entry. If it is behind, a dead
		 * producer may have moved it. */
		if (!relay_u128_cmpxchg(&ring->producer->position, pos, number, end, next) && passed_by(ring, pos) <= 0)
			return;
		pos = end;
		number = next;
	}
}

void relay_ring_drain_ready(struct relay_ring *ring, uint64_t pos, uint64_t number)
{
	/* Drain all entries: other producers rely on this one for that. */
	drain_ready(ring, pos, number, UINT64_MAX);
}

/* Fence all CPUs: their earlier stores and loads are complete. */
static void fence_all(void)
{
	/* If the kernel cannot, wait longer than a CPU keeps a store in its buffer. */
	if (!relay_fence_writers())
		nanosleep(&(struct timespec){.tv_nsec = SETTLE_NS}, NULL);
}

void relay_ring_mark_ready(struct relay_ring *ring, const struct relay_ring_place *place)
{
	const uint64_t *before = entry_of(ring, place->number - 1);
	bool fenced = false;
	for (int i = 0; i < TURN_SPINS && !fenced; i++) {
		if (relay_ring_produced(ring) == place->pos) {
			relay_ring_pass(ring, place);
			return;
		}
		fenced = __atomic_load_n(before, __ATOMIC_ACQUIRE) == place->pos;
		relay_relax();
	}
	int saved = errno;
	/* Pairs with the acquire in relay_ring_is_ready(): the header before the entry. */
	__atomic_store_n(entry_of(ring, place->number), place->end, __ATOMIC_RELEASE);
	/* Pairs with the code between position and entry in relay_ring_drain_ready(), or in relay_ring_pass(). */
	if (fenced)
		__atomic_thread_fence(__ATOMIC_SEQ_CST);
	else
		fence_all();
	relay_ring_drain_ready(ring, place->pos, place->number);
	errno = saved;
}

bool relay_ring_is_published(const struct relay_ring *ring, const struct relay_ring_place *place)
{
	/* In this order: the entry is reused only when the position has passed this record. */
	return has_entry(ring, place) || passed_by(ring, place->pos) > 0;
}

void relay_ring_publish_dead(struct relay_ring *ring, const struct relay_ring_place *place)
{
	uint64_t *entry = entry_of(ring, place->number), seen = __atomic_load_n(entry, __ATOMIC_ACQUIRE);
	int64_t passed = passed_by(ring, place->pos);
	/* A record without an entry, at the position, stays so; its owner may have done the first store already. */
	if (seen != place->end && passed == 0)
		relay_ring_pass(ring, place);
	else if (seen != place->end && passed < 0)
		__atomic_compare_exchange_n(entry, &seen, place->end, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
	fence_all();
	drain_ready(ring, place->pos, place->number, REAPER_DRAINS);
	/* The record may have been passed without an entry. */
	drain_ready(ring, place->end, (place->number + 1) & RELAY_RECORDS_MASK, REAPER_DRAINS);
}
