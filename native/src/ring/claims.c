/* SPDX-License-Identifier: MIT */
/*
 * Claims. A reservation that has not ended has a claim, by which other threads can resolve it if its producer
 * dies. As in buffer/claims.c:
 *
 *     claim.owner.in_use = 1              so that a signal handler takes another one
 *     claim.word = PENDING | pos          announce the reservation
 *     tail or `last` names the claim      reserve it, in one step
 *     header = BUSY ...                   (scheme rseq: the section that reserves stores the header, too)
 *     header without BUSY                 commit
 *     claim.word = FREE, in_use = 0
 *
 * Every thread can find out whether the reservation of a PENDING claim was made: tail or `last` names the claim of the
 * last reservation, and each producer marks that claim as TAKEN before it reserves, which is called helping
 * (relay_ring_claims_help()). Consumers never pass a BUSY header, so while it is BUSY the memory belongs to that
 * record.
 *
 *     FREE -> PENDING -> (TAKEN) -> FREE              its owner lives
 *             PENDING -> FREE                         withdrawn, or its owner died before it reserved
 *                         TAKEN  -> REAPED -> FREE    its owner died before the commit: the header becomes DISCARD
 *
 * A reaper may die, and another one continue (base/claim_table.h). Therefore each step of reaping can be repeated, and
 * one compare-and-swap makes the step to REAPED and counts the record as torn, so that it is counted once.
 */
#define _GNU_SOURCE
#include "ring/claims.h"

#include "ring/wake.h"

#include <errno.h>

/* How often to search for a free claim while all are in use. */
enum { FIND_ROUNDS = 128 };

static uint32_t n_used(const struct relay_ring *ring)
{
	return relay_claim_table_n_used(&ring->claim_table);
}

static bool change_word(uint64_t *at, uint64_t from, uint64_t to)
{
	/* Pairs with relay_ring_claim_word() in ring/claims.h. */
	return __atomic_compare_exchange_n(at, &from, to, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

struct relay_ring_claim *relay_ring_claim_take(struct relay_ring *ring)
{
	struct relay_ring_claim *claim = relay_ring_claim_kept(ring);
	/* If relay_claim_use() fails, the claim has a reservation, or this is a signal handler
	 * that interrupted its use. */
	if (claim && relay_claim_use(&claim->owner))
		return claim;
	uint32_t i = relay_claim_table_find(&ring->claim_table, FIND_ROUNDS, false);
	return i == UINT32_MAX ? NULL : &ring->claims[i];
}

/* --- helping --- */

/* The claim of the last reservation and its word, if the word is still PENDING; otherwise NULL. */
static struct relay_ring_claim *pending_last(const struct relay_ring *ring, uint64_t *word)
{
	struct relay_ring_last last = relay_ring_last(ring);
	uint64_t number = last.tail_word >> RELAY_OWNER_SHIFT;
	if (number == 0 || number > RELAY_N_CLAIMS)
		return NULL;
	struct relay_ring_claim *claim = &ring->claims[number - 1];
	*word = relay_ring_claim_word(claim);
	bool pending = (*word & RELAY_CLAIM_STATE) == RELAY_CLAIM_PENDING;
	return pending && relay_ring_made_last(ring, &last, claim, *word & RELAY_POSITION_MASK) ? claim : NULL;
}

void relay_ring_claims_help(struct relay_ring *ring)
{
	uint64_t word;
	struct relay_ring_claim *claim = pending_last(ring, &word);
	/* The compare-and-swap fails if another thread has helped already, or the reservation has ended. */
	if (claim)
		change_word(&claim->word.first, word, relay_ring_claim_taken(word));
}

struct relay_ring_claim *relay_ring_claim_at(const struct relay_ring *ring, const void *record)
{
	uint64_t at = (uint64_t)((const unsigned char *)record - ring->data) - RELAY_RING_HEADER_BYTES, latest = 0,
		 word;
	/* The last reservation is examined first: by the time it is not the last one any more, its claim is TAKEN. */
	struct relay_ring_claim *found = pending_last(ring, &word);
	if (found && (word & ring->mask) == at)
		return found;
	found = NULL;
	for (uint32_t i = 0; i < n_used(ring); i++) {
		word = relay_ring_claim_word(&ring->claims[i]);
		uint64_t pos = word & RELAY_POSITION_MASK;
		if ((word & RELAY_CLAIM_STATE) != RELAY_CLAIM_TAKEN || (pos & ring->mask) != at || pos < latest)
			continue;
		/* An older claim at this position belongs to a producer that died after its commit. */
		found = &ring->claims[i];
		latest = pos;
	}
	return found;
}

/* --- reaping --- */

/* Scheme lockless: publish the record of an owner that may have died before it published it. Store the header, unless
 * the producer position has passed the record or certainly will, and let the position pass it. */
static void publish_for_dead(struct relay_ring *ring, const struct relay_ring_claim *claim, uint64_t pos,
                             uint64_t length)
{
	/* Relaxed: stored before the word, which the caller has loaded; see
	 * relay_ring_claim_state() in ring/claims.h. */
	struct relay_ring_place place = {.pos = pos,
	                                 .end = pos + relay_ring_total(length),
	                                 .number = __atomic_load_n(&claim->number, __ATOMIC_RELAXED)};
	uint64_t header = relay_ring_header(ring, pos, (uint32_t)length | RELAY_RING_BUSY);
	if (!relay_ring_is_published(ring, &place))
		/* Relaxed: published by relay_ring_publish_dead(). */
		__atomic_store_n((uint64_t *)relay_ring_at(ring, pos), header, __ATOMIC_RELAXED);
	relay_ring_publish_dead(ring, &place);
}

/* Store the header of a dead owner's record as DISCARD, if it is still BUSY. */
static void reap_record(struct relay_ring *ring, struct relay_ring_claim *claim, uint64_t word)
{
	/* Relaxed: as `number` in publish_for_dead(). */
	uint64_t pos = word & RELAY_POSITION_MASK, length = __atomic_load_n(&claim->length, __ATOMIC_RELAXED);
	if (length > RELAY_RING_RECORD_MAX || pos % 8)
		return;
	if (ring->scheme != RELAY_RSEQ)
		publish_for_dead(ring, claim, pos, length);
	uint32_t *header = relay_ring_length_at(ring, pos);
	/* The header is loaded before the floor: if it is BUSY and the floor has not passed it afterwards, it was
	 * this record's. Acquire keeps the order. */
	uint32_t seen = __atomic_load_n(header, __ATOMIC_ACQUIRE);
	if (!(seen & RELAY_RING_BUSY) || (int64_t)(relay_ring_floor(ring) - pos) > 0)
		return;
	/* Relaxed: the compare-and-swap checks it. */
	uint64_t torn = __atomic_load_n(&claim->word.second, __ATOMIC_RELAXED);
	if ((word & RELAY_CLAIM_STATE) == RELAY_CLAIM_TAKEN)
		relay_u128_cmpxchg(&claim->word, word, torn, RELAY_RING_REAPED | pos, torn + 1);
	/* Pairs with look_once() in ring/consumer.c: the count before the header. */
	__atomic_store_n(header, (uint32_t)length | RELAY_RING_DISCARD, __ATOMIC_RELEASE);
}

/* End a claim of a dead owner. See relay_claim_table.end. */
static bool end_ring_claim(struct relay_claim_table *table, uint32_t i)
{
	struct relay_ring *ring = (struct relay_ring *)((char *)table - offsetof(struct relay_ring, claim_table));
	struct relay_ring_claim *claim = &ring->claims[i];
	relay_ring_claims_help(ring);
	uint64_t word = relay_ring_claim_word(claim), state = word & RELAY_CLAIM_STATE;
	if (state == RELAY_CLAIM_TAKEN || state == RELAY_RING_REAPED)
		reap_record(ring, claim, word);
	/* Pairs with relay_ring_claim_word() in ring/claims.h, and with is_free() in base/claim_table.c. */
	__atomic_store_n(&claim->word.first, RELAY_CLAIM_FREE, __ATOMIC_RELEASE);
	relay_ring_wake(ring, word & RELAY_POSITION_MASK, 0);
	return true;
}

int relay_ring_claims_reap_at(struct relay_ring *ring, uint64_t pos)
{
	relay_ring_claims_help(ring);
	for (uint32_t i = 0; i < n_used(ring); i++) {
		uint64_t word = relay_ring_claim_word(&ring->claims[i]), state = word & RELAY_CLAIM_STATE;
		if ((word & RELAY_POSITION_MASK) == (pos & RELAY_POSITION_MASK) &&
		    (state == RELAY_CLAIM_TAKEN || state == RELAY_RING_REAPED))
			return relay_claim_table_reap(&ring->claim_table, i);
	}
	return -ENOENT;
}

int relay_ring_resolve(struct relay_ring *ring, uint64_t token)
{
	return relay_claim_table_resolve(&ring->claim_table, token);
}

void relay_ring_set_token(struct relay_ring *ring, uint64_t token)
{
	relay_claim_table_renew(&ring->claim_table, token);
}

void relay_ring_claims_init(struct relay_ring *ring)
{
	ring->claim_table = (struct relay_claim_table){
	    .claims = (unsigned char *)ring->claims,
	    .n_used = &ring->producer->n_claims_used,
	    .n_reservations = RELAY_N_CLAIMS,
	    .end = end_ring_claim,
	};
	relay_claim_table_renew(&ring->claim_table, 0);
}

uint64_t relay_ring_claims_torn(const struct relay_ring *ring)
{
	uint64_t n = 0;
	for (uint32_t i = 0; i < n_used(ring); i++) {
		/* Relaxed: only a count. */
		uint64_t more = __atomic_load_n(&ring->claims[i].word.second, __ATOMIC_RELAXED);
		/* The sum does not overflow to a small number, so that the caller finds a damaged count. */
		n = more > UINT64_MAX - n ? UINT64_MAX : n + more;
	}
	return n;
}
