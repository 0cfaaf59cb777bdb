/* SPDX-License-Identifier: MIT */
/*
 * Making reservations. Consumers that know only the kernel's format load the producer position, and then the headers
 * before it. Therefore a header must be stored before the position passes it.
 *
 * Scheme rseq: one restartable section on the ring's CPU stores header and position.
 * relay_ring_producer.last names the claim.
 *
 * Scheme lockless: several CPUs reserve at once, and a header can be stored only after its place is reserved:
 *
 *     tail:  {end, n | last_claim} -> {end + total, n + 1 | claim}     reserve: one step decides order and owner
 *     header at end = BUSY ...                                  by the owner alone, so that no late store is possible
 *     position = end + total                                    ring/publish.c
 *
 * An owner that is interrupted between the first and the third step delays the position but no other reservation.
 * Readers wait as they would for a BUSY header.
 *
 * Mode overwrite: `oldest` (relay_ring_oldest_word()) passes records one by one until there is room; only then the new
 * record is stored there. A reader copies a record, and the copy is valid if `oldest` has not passed the record
 * afterwards. A BUSY record is not passed.
 */
#define _GNU_SOURCE
#include "ring/reserve.h"

#include "base/clock.h"
#include "base/persist.h"
#include "base/refuse.h"

#include <errno.h>
#include <string.h>

/* --- latches, in both schemes --- */

/* Do what the section of change_oldest() does, after that was aborted. Returns as change_oldest(). */
static __attribute__((noinline, cold)) int change_oldest_again(struct relay_ring *ring, uint64_t first, uint64_t second,
                                                               uint64_t pos, uint64_t records)
{
	static uint64_t nowhere;
	struct relay_tx tx = {.expect_first = first,
	                      .expect_second = second,
	                      .new_first = pos | (~first & RELAY_LATCH_INDEX),
	                      .new_second = records,
	                      .store = {{&ring->producer->overwritten.first, pos}, {&nowhere, 0}, {&nowhere, 0}}};
	enum relay_rseq_result result =
	    relay_persist_transact(&ring->state->oldest, &ring->producer->flags, &tx, ring->cpu);
	return result == RELAY_RSEQ_ABORTED ? relay_rseq_misplaced(ring->cpu) : 0;
}

/* Change `oldest` from {first, second}, which were loaded, to {pos, records}. Returns 0, also if another thread has
 * changed it since; otherwise as relay_rseq_misplaced(). */
static int change_oldest(struct relay_ring *ring, uint64_t first, uint64_t second, uint64_t pos, uint64_t records)
{
	struct relay_u128 *overwritten = &ring->producer->overwritten;
	if (ring->scheme != RELAY_RSEQ) {
		/* A full barrier, so that the change is seen before what is stored in the memory that it frees. Pairs
		 * with relay_ring_is_lapped() in ring/consumer.h and read_oldest() in ring/consumer.c. */
		relay_u128_cmpxchg(overwritten, first, second, pos, records);
		return 0;
	}
	/* If the section is aborted between the stores, the kernel's overwrite position is ahead by one record,
	 * which is the next to be overwritten; no producer has stored there yet. */
	enum relay_rseq_result result = relay_rseq_pass(&ring->state->oldest, first, pos | (~first & RELAY_LATCH_INDEX),
	                                                records, &overwritten->first, pos, ring->cpu);
	return __builtin_expect(result == RELAY_RSEQ_ABORTED, 0)
	           ? change_oldest_again(ring, first, second, pos, records)
	           : 0;
}

/* Not inlined, because that would make overwriting records slower. */
static __attribute__((noinline)) int refuse_in_ring(const struct relay_ring *ring, struct relay_latch *lost,
                                                    uint64_t length, int err)
{
	return relay_refuse(lost, length, ring->scheme, ring->cpu, err);
}

static int refuse_full(struct relay_ring *ring, uint64_t length)
{
	return refuse_in_ring(ring, &ring->state->lost_full, length, -EAGAIN);
}

int relay_ring_refuse_too_large(struct relay_ring *ring, uint64_t length)
{
	/* Limit the length that is counted, so that the sum of bytes cannot overflow. */
	return refuse_in_ring(ring, &ring->state->lost_too_large, length < UINT32_MAX ? length : UINT32_MAX, -EAGAIN);
}

static int refuse_stopped(struct relay_ring *ring, uint64_t length)
{
	/* Pairs with relay_ring_stop() and relay_ring_refuse_all() in ring/control.c. */
	uint32_t flags = __atomic_load_n(&ring->producer->flags, __ATOMIC_ACQUIRE);
	if (flags & RELAY_CLOSED)
		return -EPIPE;
	if (flags & RELAY_STOPPED)
		return refuse_in_ring(ring, &ring->state->lost_disabled, length, -ECANCELED);
	return 0;
}

/* --- room --- */

/* The record at `first`, the loaded value of `oldest`, is BUSY: reap it if its owner is dead. Returns 0 if it is not
 * BUSY any more or `oldest` has changed; otherwise as pass_oldest(). */
static int wait_for_owner(struct relay_ring *ring, uint64_t first)
{
	uint64_t pos = first & ~RELAY_LATCH_INDEX;
	int reaped = relay_ring_claims_reap_at(ring, pos);
	/* Pairs with end_record() in ring/output.c and reap_record() in ring/claims.c, and the load of
	 * `oldest` with change_oldest(). */
	bool busy = __atomic_load_n(relay_ring_length_at(ring, pos), __ATOMIC_ACQUIRE) & RELAY_RING_BUSY;
	if (reaped == 1 || !busy || __atomic_load_n(relay_ring_oldest_word(ring), __ATOMIC_ACQUIRE) != first)
		return 0;
	return reaped == 0 ? -EAGAIN : -EBADMSG;
}

/* Move `oldest` past the record there. Returns 0: this or another thread has moved it; -EAGAIN: the record is BUSY,
 * or not stored yet; -EBADMSG; or as relay_rseq_misplaced(). */
static int pass_oldest(struct relay_ring *ring)
{
	const uint64_t *word = relay_ring_oldest_word(ring);
	/* Both loads pair with change_oldest(). */
	uint64_t first = __atomic_load_n(word, __ATOMIC_ACQUIRE);
	const uint64_t *records =
	    ring->scheme == RELAY_RSEQ ? &ring->state->oldest.second[first >> 63] : &ring->producer->overwritten.second;
	uint64_t second = __atomic_load_n(records, __ATOMIC_ACQUIRE);
	uint64_t pos = first & ~RELAY_LATCH_INDEX, produced = relay_ring_produced(ring);
	if (pos % 8)
		return -EBADMSG;
	/* Pairs with end_record() in ring/output.c; acquire keeps it before the check of `oldest` below. */
	uint32_t length = __atomic_load_n(relay_ring_length_at(ring, pos), __ATOMIC_ACQUIRE);
	/* If `oldest` has not changed, the values loaded above belong to this record. */
	if (__atomic_load_n(word, __ATOMIC_ACQUIRE) != first)
		return 0;
	if (produced == pos)
		return -EAGAIN;
	if (length & RELAY_RING_BUSY)
		return wait_for_owner(ring, first);
	if (!relay_ring_fits(ring, pos, length, produced))
		return -EBADMSG;
	uint64_t next = pos + relay_ring_total(length & ~RELAY_RING_DISCARD);
	return change_oldest(ring, first, second, next, second + !(length & RELAY_RING_DISCARD));
}

int relay_ring_make_room(struct relay_ring *ring, uint64_t end)
{
	for (uint64_t tries = 0; !relay_ring_has_room(ring, end); tries++) {
		int err = ring->mode == RELAY_OVERWRITE ? pass_oldest(ring) : -EAGAIN;
		if (err)
			return err;
		/* A limit for damaged memory: the room that is needed cannot hold more records than this. */
		if (__builtin_expect(tries > RELAY_CHANGE_TRIES, 0) &&
		    (tries - RELAY_CHANGE_TRIES) * RELAY_RING_HEADER_BYTES > end - relay_ring_reserved(ring))
			return -EBADMSG;
	}
	return 0;
}

/* Make room for a record that ends at `end`; if there is none, count the record as lost, unless `uncounted`. Returns
 * as relay_ring_make_room(). */
static int find_room(struct relay_ring *ring, uint64_t end, uint64_t length, bool uncounted)
{
	int err = relay_ring_make_room(ring, end);
	return err == -EAGAIN && !uncounted ? refuse_full(ring, length) : err;
}

/* --- scheme lockless --- */

/* True if there is a free entry in `ready` for one more record that is not passed. Reaps claims of dead
 * producers, which may hold some. */
static bool has_free_entry(struct relay_ring *ring, uint64_t number)
{
	for (int tries = 0; tries < 2; tries++) {
		/* The count may be one too large: see relay_ring_pass(). */
		uint64_t passed = __atomic_load_n(&ring->producer->position.second, __ATOMIC_ACQUIRE) - 1;
		if (((number - passed) & RELAY_RECORDS_MASK) < RELAY_RING_N_READY)
			return true;
		relay_ring_resolve(ring, 0);
	}
	return false;
}

/* Check that the record at `place`, the next one, may be reserved, and make room for it. *turn: the producer
 * position is there. Returns 0, or an error of relay_ring_reserve_claimed(). */
static int check_place(struct relay_ring *ring, const struct relay_ring_place *place, uint64_t length, bool uncounted,
                       bool *turn)
{
	/* The flags are loaded after the tail. Pairs with relay_ring_stop() in ring/control.c, which sets the flag
	 * before seal() changes the tail. */
	int err = refuse_stopped(ring, length);
	if (err)
		return err;
	relay_ring_claims_help(ring);
	err = find_room(ring, place->end, length, uncounted);
	if (err)
		return err;
	if (place->pos % 8)
		return -EBADMSG;
	*turn = relay_ring_produced(ring) == place->pos;
	if (*turn || has_free_entry(ring, place->number))
		return 0;
	return uncounted ? -EAGAIN : refuse_full(ring, length);
}

/* With `times`: the time of a record whose position was loaded, and is checked afterwards. The producer of a later record
 * has loaded a later position, and so reads a later time. */
static uint64_t time_now(const struct relay_ring *ring)
{
	return ring->time_bytes ? relay_clock_now_if_blind(ring->geometry.times) : 0;
}

/* Store that time, when the record is reserved. */
static void store_time(struct relay_ring *ring, uint64_t pos, uint64_t time)
{
	if (ring->time_bytes)
		memcpy(relay_ring_at(ring, pos) + RELAY_RING_HEADER_BYTES, &time, sizeof(time));
}

static int reserve_lockless(struct relay_ring *ring, uint64_t length, bool uncounted, struct relay_ring_claim *claim,
                            uint64_t *pos)
{
	for (int tries = 0; tries < RELAY_CHANGE_TRIES; tries++) {
		uint64_t last_claim;
		bool turn;
		struct relay_ring_place place = relay_ring_next_place(ring, length, &last_claim);
		int err = check_place(ring, &place, length, uncounted, &turn);
		if (err)
			return err;
		uint64_t time = time_now(ring);
		relay_ring_claim_state(claim, place.pos, length, place.number);
		if (relay_ring_take_place(ring, &place, last_claim, relay_ring_claim_name(ring, claim))) {
			store_time(ring, place.pos, time);
			relay_ring_show_place(ring, &place, length, turn);
			*pos = place.pos;
			return 0;
		}
		relay_ring_claim_withdraw(claim);
		relay_ring_backoff();
	}
	return -EBADMSG;
}

/* --- scheme rseq --- */

int relay_ring_prepare(struct relay_ring *ring, uint64_t length, bool uncounted, uint32_t bits,
                       struct relay_ring_put *put)
{
	put->expect = relay_ring_produced(ring);
	int err = refuse_stopped(ring, length);
	if (err)
		return err;
	if (put->expect % 8)
		return -EBADMSG;
	put->next = put->expect + relay_ring_total(length);
	put->header = relay_ring_header(ring, put->expect, (uint32_t)length | bits);
	put->to = relay_ring_at(ring, put->expect) + RELAY_RING_HEADER_BYTES;
	RELAY_PUBLISHES(&ring->producer->position.first);
	return find_room(ring, put->next, length, uncounted);
}

static int reserve_rseq(struct relay_ring *ring, uint64_t length, bool uncounted, struct relay_ring_claim *claim,
                        uint64_t *pos)
{
	for (int tries = 0; tries < RELAY_CHANGE_TRIES; tries++) {
		struct relay_ring_put put;
		int err = relay_ring_prepare(ring, length, uncounted, RELAY_RING_BUSY, &put);
		if (err)
			return err;
		/* Loaded after the position, which the section compares: so the reservation that `last` names was
		 * made by now, or never will be. */
		uint64_t last = __atomic_load_n(&ring->producer->last, __ATOMIC_ACQUIRE);
		relay_ring_claims_help(ring);
		*pos = put.expect;
		uint64_t time = time_now(ring);
		relay_ring_claim_state(claim, *pos, length, 0);
		uint64_t new_last = relay_ring_claim_name(ring, claim) | (*pos & RELAY_RECORDS_MASK);
		enum relay_rseq_result result =
		    relay_rseq_ring_reserve(ring->producer, &put, last, new_last, ring->cpu);
		if (result == RELAY_RSEQ_ABORTED)
			result = relay_persist_ring_reserve(ring->producer, &put, last, new_last, ring->cpu);
		if (result == RELAY_RSEQ_DONE) {
			store_time(ring, *pos, time);
			return 0;
		}
		relay_ring_claim_withdraw(claim);
		err = result == RELAY_RSEQ_ABORTED ? relay_rseq_misplaced(ring->cpu) : 0;
		if (err)
			return err;
	}
	return -EBADMSG;
}

/* --- both --- */

int relay_ring_reserve_claimed(struct relay_ring *ring, uint64_t length, bool uncounted,
                               struct relay_ring_claim **claim, uint64_t *pos)
{
	/* For remote rings, the caller then calls the functions of ring/remote.h. */
	if (ring->remote)
		return RELAY_WRONG_CPU;
	if (relay_ring_is_too_large(ring, length)) {
		int err = refuse_stopped(ring, length);
		return err ? err : relay_ring_refuse_too_large(ring, length);
	}
	*claim = relay_ring_claim_take(ring);
	if (!*claim)
		return uncounted ? -EAGAIN : refuse_full(ring, length);
	length += ring->time_bytes;
	int err = ring->scheme == RELAY_RSEQ ? reserve_rseq(ring, length, uncounted, *claim, pos)
	                                     : reserve_lockless(ring, length, uncounted, *claim, pos);
	if (err)
		relay_ring_claim_release(ring, *claim);
	return err;
}
