/* SPDX-License-Identifier: MIT */
/* Reserving room for a record, in both schemes, and refusing records. See ring/reserve.c. */
#ifndef RELAYFS_RING_RESERVE_H
#define RELAYFS_RING_RESERVE_H

#include "base/rseq.h"
#include "ring/claims.h"

/* The slow path of relay_ring_reserve_claimed(), for all cases. */
int relay_ring_reserve_anyhow(struct relay_ring *ring, uint64_t length, bool uncounted, struct relay_ring_claim **claim,
                              uint64_t *pos);

/* Scheme rseq: make room for a record at the producer position, and return how to store it. uncounted: the producer will try
 * again, so a record without room is not counted as lost. Returns as relay_ring_reserve_slow(). */
int relay_ring_prepare(struct relay_ring *ring, uint64_t length, bool uncounted, uint32_t bits,
                       struct relay_ring_put *put);

/* Count a record that is longer than the ring allows. -EAGAIN, or as above. */
int relay_ring_refuse_too_large(struct relay_ring *ring, uint64_t length);

/* Make room up to `end`. 0, -EAGAIN: there is none, -EBADMSG, or as relay_rseq_misplaced(). */
int relay_ring_make_room(struct relay_ring *ring, uint64_t end);

static inline bool relay_ring_is_too_large(const struct relay_ring *ring, uint64_t length)
{
	return length > ring->largest;
}

static inline bool relay_ring_has_room(const struct relay_ring *ring, uint64_t end)
{
	/* Never quite full: see ring_layout.h. */
	return end - relay_ring_floor(ring) <= ring->mask;
}

/* --- scheme lockless --- */

/* Return the place of the next reservation, and, in the tail's top 16 bits, the claim of the last one. */
static inline struct relay_ring_place relay_ring_next_place(const struct relay_ring *ring, uint64_t length,
                                                            uint64_t *last_claim)
{
	const struct relay_u128 *tail = &ring->producer->tail[0];
	/* The loads need no order: if they are not of one moment, the compare-and-swap fails. Acquire: the stores that the last
	 * producer made before, and helped with. */
	uint64_t pos = __atomic_load_n(&tail->first, __ATOMIC_ACQUIRE);
	uint64_t second = __atomic_load_n(&tail->second, __ATOMIC_ACQUIRE);
	*last_claim = second & ~RELAY_RECORDS_MASK;
	return (struct relay_ring_place){
	    .pos = pos, .end = pos + relay_ring_total(length), .number = second & RELAY_RECORDS_MASK};
}

/* Reserve the place for a claim that has announced it: the only locked step. A full barrier; false: another record has been
 * reserved. */
static inline bool relay_ring_take_place(struct relay_ring *ring, const struct relay_ring_place *place,
                                         uint64_t last_claim, uint64_t name)
{
	return relay_u128_cmpxchg(&ring->producer->tail[0], place->pos, place->number | last_claim, place->end,
	                          ((place->number + 1) & RELAY_RECORDS_MASK) | name);
}

/* After the reservation: store the header, then pass the record. turn: the producer position was there before. */
static inline void relay_ring_show_place(struct relay_ring *ring, const struct relay_ring_place *place, uint64_t length,
                                         bool turn)
{
	uint64_t header = relay_ring_header(ring, place->pos, (uint32_t)length | RELAY_RING_BUSY);
	/* Relaxed: published by what follows. */
	__atomic_store_n((uint64_t *)relay_ring_at(ring, place->pos), header, __ATOMIC_RELAXED);
	if (turn)
		relay_ring_pass(ring, place);
	else
		relay_ring_mark_ready(ring, place);
}

/*
 * The fast path, with no call and one locked instruction: this thread has also made the last reservation, the producer
 * position has passed that, and there is room. false: it is not so, and nothing has been changed.
 */
static inline bool relay_ring_reserve_again_lockless(struct relay_ring *ring, uint64_t length,
                                                     struct relay_ring_claim **claim, uint64_t *pos)
{
	struct relay_ring_claim *mine = relay_ring_claim_kept(ring);
	uint64_t last_claim;
	struct relay_ring_place place = relay_ring_next_place(ring, length, &last_claim);
	/* Load the flags after the tail: a thread that stops the ring sets the flag, then changes the tail. */
	uint32_t flags = __atomic_load_n(&ring->producer->flags, __ATOMIC_ACQUIRE);
	if (!mine || last_claim != relay_ring_claim_name(ring, mine) || flags & RELAY_STOPPED ||
	    relay_ring_produced(ring) != place.pos || place.pos % 8 || relay_ring_is_too_large(ring, length))
		return false;
	if (!relay_ring_has_room(ring, place.end) &&
	    (ring->mode != RELAY_OVERWRITE || relay_ring_make_room(ring, place.end)))
		return false;
	if (!relay_claim_use(&mine->owner))
		return false;
	relay_ring_claim_state(mine, place.pos, length, place.number);
	if (__builtin_expect(!relay_ring_take_place(ring, &place, last_claim, last_claim), 0)) {
		relay_ring_claim_release(ring, mine);
		relay_ring_backoff();
		return false;
	}
	relay_ring_show_place(ring, &place, length, true);
	*claim = mine;
	*pos = place.pos;
	return true;
}

/* --- scheme rseq --- */

/* The fast path of scheme rseq, without a locked instruction. */
static inline bool relay_ring_reserve_again_rseq(struct relay_ring *ring, uint64_t length,
                                                 struct relay_ring_claim **claim, uint64_t *pos)
{
	struct relay_ring_claim *mine = relay_ring_claim_kept(ring);
	struct relay_ring_put put = {.expect = relay_ring_produced(ring)};
	/* Load this after the position, as in reserve_rseq(). */
	uint64_t last = __atomic_load_n(&ring->producer->last, __ATOMIC_ACQUIRE);
	uint64_t last_claim = last & ~RELAY_RECORDS_MASK;
	put.next = put.expect + relay_ring_total(length);
	if (!mine || last_claim != relay_ring_claim_name(ring, mine) || put.expect % 8 ||
	    relay_ring_is_too_large(ring, length) || !relay_ring_has_room(ring, put.next) ||
	    !relay_claim_use(&mine->owner))
		return false;
	put.header = relay_ring_header(ring, put.expect, (uint32_t)length | RELAY_RING_BUSY);
	put.to = relay_ring_at(ring, put.expect) + RELAY_RING_HEADER_BYTES;
	relay_ring_claim_state(mine, put.expect, length, 0);
	RELAY_PUBLISHES(&ring->producer->position.first);
	if (relay_rseq_ring_reserve(ring->producer, &put, last, last_claim | (put.expect & RELAY_RECORDS_MASK),
	                            ring->cpu) != RELAY_RSEQ_DONE) {
		relay_ring_claim_release(ring, mine);
		return false;
	}
	*claim = mine;
	*pos = put.expect;
	return true;
}

/* --- both --- */

static inline bool relay_ring_reserve_again(struct relay_ring *ring, uint64_t length, struct relay_ring_claim **claim,
                                            uint64_t *pos)
{
	return ring->scheme == RELAY_RSEQ ? relay_ring_reserve_again_rseq(ring, length, claim, pos)
	                                  : relay_ring_reserve_again_lockless(ring, length, claim, pos);
}

/* Reserve `length` bytes for a claim, which is then the caller's, at *pos. 0, an error of relay_ring_output(), or
 * RELAY_WRONG_CPU. flags: RELAY_RING_WILL_RETRY, or what does not matter here. */
static inline int relay_ring_reserve_claimed(struct relay_ring *ring, uint64_t length, uint64_t flags,
                                             struct relay_ring_claim **claim, uint64_t *pos)
{
	if (__builtin_expect(relay_ring_reserve_again(ring, length, claim, pos), 1))
		return 0;
	return relay_ring_reserve_anyhow(ring, length, flags & RELAY_RING_WILL_RETRY, claim, pos);
}

#endif
