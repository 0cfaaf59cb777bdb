/* SPDX-License-Identifier: MIT */
/* Reserving room for a record, in both schemes, and refusing records. See ring/reserve.c. */
#ifndef RELAYFS_RING_RESERVE_H
#define RELAYFS_RING_RESERVE_H

#include "base/rseq.h"
#include "ring/claims.h"

/* The slow path of relay_ring_reserve_again(), for all cases; with `times` it stores the record's time behind the header. uncounted: the producer will try again, so a record
 * without room is not counted as lost. */
int relay_ring_reserve_claimed(struct relay_ring *ring, uint64_t length, bool uncounted,
                               struct relay_ring_claim **claim, uint64_t *pos);

/* Scheme rseq: make room for a record at the producer position, and store in *put how to write it, with `bits` in
 * its header. Returns as relay_ring_reserve_claimed(). */
int relay_ring_prepare(struct relay_ring *ring, uint64_t length, bool uncounted, uint32_t bits,
                       struct relay_ring_put *put);

/* Count a record that is longer than the ring allows. Returns -EAGAIN, or an error as relay_refuse(). */
int relay_ring_refuse_too_large(struct relay_ring *ring, uint64_t length);

/* Make room for a record that ends at position `end`. Returns 0; -EAGAIN: there is none; -EBADMSG; or
 * as relay_rseq_misplaced(). */
int relay_ring_make_room(struct relay_ring *ring, uint64_t end);

static inline bool relay_ring_is_too_large(const struct relay_ring *ring, uint64_t length)
{
	return length > ring->largest;
}

/* False if a record is not for the fast paths. */
static inline bool relay_ring_is_quick(const struct relay_ring *ring, uint64_t length)
{
	return length < ring->quick;
}

/* As relay_inline_ring_has_room(), also for mode overwrite, whose floor never decreases either. */
static inline bool relay_ring_has_room(struct relay_ring *ring, uint64_t end)
{
	/* Pairs as in relay_inline_ring_has_room(). The ring is never quite full; see <relayfs/ring_layout.h>. */
	if (end - __atomic_load_n(&ring->floor, __ATOMIC_ACQUIRE) <= ring->mask)
		return true;
	uint64_t floor = relay_ring_floor(ring);
	__atomic_store_n(&ring->floor, floor, __ATOMIC_RELEASE);
	return end - floor <= ring->mask;
}

/* --- scheme lockless --- */

/* Return the place of the next reservation; *last_claim receives the claim of the last one, in its top 16 bits. */
static inline struct relay_ring_place relay_ring_next_place(const struct relay_ring *ring, uint64_t length,
                                                            uint64_t *last_claim)
{
	const struct relay_u128 *tail = &ring->producer->tail[0];
	/* The order of the loads does not matter: if they are of different moments, the compare-and-swap fails.
	 * Acquire: pairs with relay_ring_take_place(), before which the last producer has stored its claim, and the
	 * word of the claim that it helped. */
	uint64_t pos = __atomic_load_n(&tail->first, __ATOMIC_ACQUIRE);
	uint64_t second = __atomic_load_n(&tail->second, __ATOMIC_ACQUIRE);
	*last_claim = second & ~RELAY_RECORDS_MASK;
	return (struct relay_ring_place){
	    .pos = pos, .end = pos + relay_ring_total(length), .number = second & RELAY_RECORDS_MASK};
}

/* Reserve the place for a claim that has announced it, by the only locked instruction of a reservation. It is a full
 * barrier. Returns false if another record has been reserved there. */
static inline bool relay_ring_take_place(struct relay_ring *ring, const struct relay_ring_place *place,
                                         uint64_t last_claim, uint64_t name)
{
	return relay_u128_cmpxchg(&ring->producer->tail[0], place->pos, place->number | last_claim, place->end,
	                          ((place->number + 1) & RELAY_RECORDS_MASK) | name);
}

/* After the reservation: store the header, then pass the record (ring/publish.h). turn: the producer
 * position has been seen there. */
static inline void relay_ring_show_place(struct relay_ring *ring, const struct relay_ring_place *place, uint64_t length,
                                         bool turn)
{
	uint64_t header = relay_ring_header(ring, place->pos, (uint32_t)length | RELAY_RING_BUSY);
	/* Relaxed: published by relay_ring_pass() or relay_ring_mark_ready(). */
	__atomic_store_n((uint64_t *)relay_ring_at(ring, place->pos), header, __ATOMIC_RELAXED);
	if (turn)
		relay_ring_pass(ring, place);
	else
		relay_ring_mark_ready(ring, place);
}

/*
 * The fast path of scheme lockless, with no call and one locked instruction. It is possible if this thread has also
 * made the last reservation, the producer position has passed that, and there is room. Otherwise it returns false, and
 * nothing has been changed.
 */
static inline __attribute__((always_inline)) bool relay_ring_reserve_again_lockless(struct relay_ring *ring,
                                                                                    uint64_t length,
                                                                                    struct relay_ring_claim **claim,
                                                                                    uint64_t *pos)
{
	struct relay_ring_claim *mine = relay_ring_claim_kept(ring);
	uint64_t last_claim;
	struct relay_ring_place place = relay_ring_next_place(ring, length, &last_claim);
	/* The flags are loaded after the tail. Pairs with relay_ring_stop() in ring/control.c, which sets the flag
	 * before seal() changes the tail. */
	uint32_t flags = __atomic_load_n(&ring->producer->flags, __ATOMIC_ACQUIRE);
	if (!mine || last_claim != relay_ring_claim_name(ring, mine) || flags & RELAY_STOPPED ||
	    relay_ring_produced(ring) != place.pos || place.pos % 8 || !relay_ring_is_quick(ring, length))
		return false;
	if (__builtin_expect(!relay_ring_has_room(ring, place.end), 0) &&
	    (ring->mode != RELAY_OVERWRITE || relay_ring_make_room(ring, place.end)))
		return false;
	if (!relay_claim_use(&mine->owner))
		return false;
	relay_ring_claim_state(mine, place.pos, length, place.number);
	relay_prefetch_ahead(relay_ring_at(ring, place.pos));
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

/* --- both --- */

/* The fast path: reserve `length` bytes at *pos, with *claim, which is then the caller's. Returns false as above. */
static inline __attribute__((always_inline)) bool
relay_ring_reserve_again(struct relay_ring *ring, uint64_t length, struct relay_ring_claim **claim, uint64_t *pos)
{
	uint64_t number;
	if (ring->scheme != RELAY_RSEQ)
		return relay_ring_reserve_again_lockless(ring, length, claim, pos);
	if (!relay_inline_ring_reserve_at(&ring->fast, length, &number, pos))
		return false;
	*claim = &ring->claims[number];
	return true;
}

#endif
