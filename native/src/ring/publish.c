/* SPDX-License-Identifier: MIT */
/*
 * Scheme lockless: advancing the producer position. Consumers that know only the kernel's format load the producer
 * position, and then the headers before it. Records are reserved in one order, but several CPUs store their headers in
 * another. The position passes records in the order of reservation:
 *
 *     the position is at this record                        earlier records are not passed yet
 *     position = {end, n + 1}      two plain stores         ready[n % N] = end
 *     ready[n + 1] fits? drain                              membarrier
 *                                                           drain
 *
 *     drain: while ready[n] fits:  position: {pos, n} -> {ready[n], n + 1}, pos = ready[n], n++
 *
 * Only its owner passes a record that has no entry in `ready`, so no other thread moves the position before the two
 * plain stores. A producer that has moved the position checks for the next entry; a producer that makes an entry tries
 * to move the position. One of the two must see the other's store. A fence in the first one would cost as much as all
 * its other instructions; so the second one makes the kernel fence all CPUs, as in base/arm.h. That is rare, because
 * the position usually reaches a producer's record within TURN_SPINS. If the record before has an entry, the kernel's
 * fence is not needed, because that record is passed by a compare-and-swap, which is a fence.
 *
 * A producer drains before it frees its claim; if it dies before that, the reaper of its claim drains.
 *
 * {pos, n} is never loaded from `position`, because between the two plain stores the words do not belong together. Each
 * drain starts at a record whose position and number are known, and the entries lead to the next ones.
 */
#define _GNU_SOURCE
#include "ring/publish.h"

#include "base/cpu.h"
#include "base/futex.h"
#include "base/latch.h"

#include <errno.h>
#include <time.h>

/* TURN_SPINS: how often to check whether the position has reached the record; the producer of the record before
 * needs only a few stores for that, unless it is interrupted. */
enum { TURN_SPINS = 64, BACKOFF_SPINS = 128, SETTLE_NS = 1000000 };

/* The most entries that a reaper drains. Only hostile producers make more meanwhile, and they must not keep the file
 * server, which also reaps claims, in the loop. */
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
	/* Pairs with the release in relay_ring_mark_ready(): the header before the entry. */
	return __atomic_load_n(entry_of(ring, place->number), __ATOMIC_ACQUIRE) == place->end;
}

/* Bytes by which the position is behind the record at pos; negative: the position is before it. */
static int64_t passed_by(const struct relay_ring *ring, uint64_t pos)
{
	return (int64_t)(relay_ring_produced(ring) - pos);
}

static void drain_ready(struct relay_ring *ring, uint64_t pos, uint64_t number, uint64_t most)
{
	for (; most && relay_ring_is_ready(ring, number, pos); most--) {
		/* Pairs as in relay_ring_is_ready() in ring/publish.h. */
		uint64_t end = __atomic_load_n(entry_of(ring, number), __ATOMIC_ACQUIRE);
		uint64_t next = (number + 1) & RELAY_RECORDS_MASK;
		/* This fails if the position is before the record; then the producer that moves it here finds the
		 * entry. It also fails if the position is behind the record, because a dead producer has moved it;
		 * then the drain continues. */
		if (!relay_u128_cmpxchg(&ring->producer->position, pos, number, end, next) && passed_by(ring, pos) <= 0)
			return;
		pos = end;
		number = next;
	}
}

void relay_ring_drain_ready(struct relay_ring *ring, uint64_t pos, uint64_t number)
{
	/* Without a limit, because the producers of these entries do not wait for the position. */
	drain_ready(ring, pos, number, UINT64_MAX);
}

/* Fence all CPUs that run producers, so that their stores from before are seen after the call. */
static void fence_all(void)
{
	/* If the kernel cannot do it, wait for longer than a CPU keeps a store in its store buffer. */
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
		/* Pairs with the release below, by the producer of the record before. */
		fenced = __atomic_load_n(before, __ATOMIC_ACQUIRE) == place->pos;
		relay_relax();
	}
	int saved = errno;
	/* Pairs with the acquire in relay_ring_is_ready(): the header before the entry. */
	__atomic_store_n(entry_of(ring, place->number), place->end, __ATOMIC_RELEASE);
	/* The store of the entry before the loads of the position. Pairs with relay_ring_pass() and
	 * drain_ready(), which change the position before they load the entry; in relay_ring_pass() only the
	 * kernel's fence orders the two. */
	if (fenced)
		__atomic_thread_fence(__ATOMIC_SEQ_CST);
	else
		fence_all();
	relay_ring_drain_ready(ring, place->pos, place->number);
	errno = saved;
}

bool relay_ring_is_published(const struct relay_ring *ring, const struct relay_ring_place *place)
{
	/* The entry is loaded first, because it is used again only when the position has passed this record. */
	return has_entry(ring, place) || passed_by(ring, place->pos) > 0;
}

void relay_ring_publish_dead(struct relay_ring *ring, const struct relay_ring_place *place)
{
	/* Pairs with the release in relay_ring_mark_ready(), and the compare-and-swap with relay_ring_is_ready() in
	 * ring/publish.h: the header before the entry. */
	uint64_t *entry = entry_of(ring, place->number), seen = __atomic_load_n(entry, __ATOMIC_ACQUIRE);
	int64_t passed = passed_by(ring, place->pos);
	/* If the position is at the record and there is no entry, no other thread passes the record; the dead owner
	 * may have made the first store of relay_ring_pass(). */
	if (seen != place->end && passed == 0)
		relay_ring_pass(ring, place);
	else if (seen != place->end && passed < 0)
		__atomic_compare_exchange_n(entry, &seen, place->end, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
	fence_all();
	drain_ready(ring, place->pos, place->number, REAPER_DRAINS);
	/* The record may have been passed without an entry, so that the drain above ended there. */
	drain_ready(ring, place->end, (place->number + 1) & RELAY_RECORDS_MASK, REAPER_DRAINS);
}
