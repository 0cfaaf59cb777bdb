/* SPDX-License-Identifier: MIT */
/*
 * Claims: how a reservation survives the death of its producer. The idea is that of buffer/claims.c:
 *
 *     claim.in_use = 1                    so that a signal handler takes another one
 *     claim.word = PENDING | pos          say what is about to be reserved
 *     tail or last names the claim        reserve it: one step
 *     header = BUSY ...                   (in scheme rseq that step does this, too)
 *     header without BUSY                 commit
 *     claim.word = FREE, in_use = 0
 *
 * Whether a PENDING claim was reserved can always be told: the last reservation is named, and whoever reserves next first
 * marks it TAKEN ("helps"). Consumers never pass a BUSY header, so while it stands, the memory is that record's.
 *
 *     FREE -> PENDING -> (TAKEN) -> FREE              its owner lives
 *                         TAKEN  -> REAPED -> FREE    its owner died before the commit: the header becomes DISCARD
 *
 * Only one thread at a time ends a dead thread's claim: the reaper. When it dies, another one is; each step of reaping can
 * be done again, and the step to REAPED counts the record in the same compare-and-swap, so it counts once.
 */
#define _GNU_SOURCE
#include "ring/claims.h"

#include "ring/wake.h"

#include <errno.h>
#include <sched.h>

/* How often to look for a claim while all are in use; and as long as nobody has found one since that was in vain. */
enum { FIND_ROUNDS = 128, DOUBTED_ROUNDS = 4, LOOK_FOR_DEAD = 64 };

__thread struct relay_ring_kept relay_ring_kept[RELAY_RING_N_KEPT];

static uint32_t n_used(const struct relay_ring *ring)
{
	uint32_t n = __atomic_load_n(&ring->producer->n_claims_used, __ATOMIC_ACQUIRE);
	return n < RELAY_RING_N_CLAIMS ? n : RELAY_RING_N_CLAIMS;
}

static bool change(uint64_t *at, uint64_t from, uint64_t to)
{
	return __atomic_compare_exchange_n(at, &from, to, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

/* --- taking --- */

/* Claims below n_claims_used are looked at only: raise it before the claim is used. */
static void raise_used(struct relay_ring *ring, uint32_t n)
{
	uint32_t old = __atomic_load_n(&ring->producer->n_claims_used, __ATOMIC_RELAXED);
	while (old < n && !__atomic_compare_exchange_n(&ring->producer->n_claims_used, &old, n, true, __ATOMIC_SEQ_CST,
	                                               __ATOMIC_RELAXED))
		;
}

/* Make a claim ours that is not in use, if it is ours or nobody's, and mark it. */
static bool try_own(struct relay_ring *ring, uint32_t i, uint64_t self)
{
	struct relay_ring_claim *claim = &ring->claims[i];
	uint64_t owner = __atomic_load_n(&claim->owner, __ATOMIC_ACQUIRE);
	bool in_use = __atomic_load_n(&claim->in_use, __ATOMIC_ACQUIRE);
	if (in_use || (owner && (owner != self || i >= RELAY_RING_N_CLAIMS_KEPT)))
		return false;
	if (!owner && !change(&claim->owner, 0, self))
		return false;
	__atomic_store_n(&claim->token, __atomic_load_n(&ring->token, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
	raise_used(ring, i + 1);
	/* If not, a handler has it: ours for later, if it is one of those we may keep. */
	bool marked = relay_ring_claim_mark(claim);
	if (!marked && i >= RELAY_RING_N_CLAIMS_KEPT)
		__atomic_store_n(&claim->owner, 0, __ATOMIC_RELEASE);
	return marked;
}

static struct relay_ring_claim *find_in(struct relay_ring *ring, uint32_t from, uint32_t to)
{
	uint64_t self = relay_owner_self();
	for (uint32_t i = from; i < to; i++)
		if (try_own(ring, i, self))
			return &ring->claims[i];
	return NULL;
}

/* One to keep; else one for a single reservation. To ask who is dead costs system calls: now and then. */
static struct relay_ring_claim *find(struct relay_ring *ring)
{
	/* Relaxed: it only says how long to look. Claims that hold nonsense would cost each record all rounds. */
	int rounds = __atomic_load_n(&ring->finds_none, __ATOMIC_RELAXED) ? DOUBTED_ROUNDS : FIND_ROUNDS;
	for (int round = 0; round < rounds; round++) {
		struct relay_ring_claim *claim = find_in(ring, 0, RELAY_RING_N_CLAIMS_KEPT);
		if (!claim && __atomic_fetch_add(&ring->n_unkept, 1, __ATOMIC_RELAXED) % LOOK_FOR_DEAD == 0 &&
		    relay_ring_resolve(ring, 0))
			claim = find_in(ring, 0, RELAY_RING_N_CLAIMS_KEPT);
		if (!claim)
			claim = find_in(ring, RELAY_RING_N_CLAIMS_KEPT, RELAY_RING_N_CLAIMS);
		if (claim) {
			if (__atomic_load_n(&ring->finds_none, __ATOMIC_RELAXED))
				__atomic_store_n(&ring->finds_none, false, __ATOMIC_RELAXED);
			return claim;
		}
		/* All in use this moment. */
		sched_yield();
	}
	__atomic_store_n(&ring->finds_none, true, __ATOMIC_RELAXED);
	return NULL;
}

/* Keep it, for as long as the ring has this id. */
static void keep(const struct relay_ring *ring, const struct relay_ring_claim *claim, uint32_t id, uint32_t epoch)
{
	struct relay_ring_kept *kept = &relay_ring_kept[id % RELAY_RING_N_KEPT];
	/* A handler between these lines leaves one of ours, whichever. */
	kept->epoch = 0;
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	kept->claim = (uint32_t)(claim - ring->claims);
	kept->ring_id = id;
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	kept->epoch = epoch;
}

struct relay_ring_claim *relay_ring_claim_take(struct relay_ring *ring)
{
	/* Before the search: under a new id, or in a child, it is to be made anew. */
	uint32_t id = __atomic_load_n(&ring->id, __ATOMIC_ACQUIRE);
	uint32_t epoch = __atomic_load_n(&relay_fork_epoch, __ATOMIC_RELAXED);
	struct relay_ring_claim *claim = relay_ring_claim_kept(ring);
	/* In use: it is a reservation, or this is a signal handler and the interrupted code is using it. */
	if (claim && relay_ring_claim_mark(claim))
		return claim;
	claim = find(ring);
	if (claim && claim - ring->claims < RELAY_RING_N_CLAIMS_KEPT)
		keep(ring, claim, id, epoch);
	return claim;
}

void relay_ring_claims_forget_kept(struct relay_ring *ring)
{
	static uint32_t last_id;
	__atomic_store_n(&ring->id, __atomic_add_fetch(&last_id, 1, __ATOMIC_RELAXED), __ATOMIC_RELEASE);
}

void relay_ring_set_token(struct relay_ring *ring, uint64_t token)
{
	__atomic_store_n(&ring->token, token, __ATOMIC_RELAXED);
	/* Claims that threads have kept get the token, too: under a new id they find them anew. */
	relay_ring_claims_forget_kept(ring);
}

/* --- helping --- */

/* The claim of the last reservation, if it still says PENDING, and its word; NULL: it does not. */
static struct relay_ring_claim *in_question(const struct relay_ring *ring, uint64_t *word)
{
	struct relay_ring_last last = relay_ring_last(ring);
	uint64_t number = last.who >> RELAY_OWNER_SHIFT;
	if (number == 0 || number > RELAY_RING_N_CLAIMS)
		return NULL;
	struct relay_ring_claim *claim = &ring->claims[number - 1];
	*word = relay_ring_claim_word(claim);
	bool pending = (*word & RELAY_CLAIM_STATE) == RELAY_CLAIM_PENDING;
	return pending && relay_ring_made_last(ring, &last, claim, *word & RELAY_POSITION_MASK) ? claim : NULL;
}

void relay_ring_claims_help(struct relay_ring *ring)
{
	uint64_t word;
	struct relay_ring_claim *claim = in_question(ring, &word);
	/* Fails if somebody has helped already, or it has ended. */
	if (claim)
		change(&claim->word.first, word, relay_ring_claim_taken(word));
}

struct relay_ring_claim *relay_ring_claim_at(const struct relay_ring *ring, const void *record)
{
	uint64_t at = (uint64_t)((const unsigned char *)record - ring->data) - RELAY_RING_HEADER_BYTES, latest = 0,
		 word;
	/* In this order: what is not the last reservation any more is TAKEN. */
	struct relay_ring_claim *found = in_question(ring, &word);
	if (found && (word & ring->mask) == at)
		return found;
	found = NULL;
	for (uint32_t i = 0; i < n_used(ring); i++) {
		word = relay_ring_claim_word(&ring->claims[i]);
		uint64_t pos = word & RELAY_POSITION_MASK;
		if ((word & RELAY_CLAIM_STATE) != RELAY_CLAIM_TAKEN || (pos & ring->mask) != at || pos < latest)
			continue;
		/* An earlier one is that of a producer that died after its commit. */
		found = &ring->claims[i];
		latest = pos;
	}
	return found;
}

/* --- reaping --- */

/* Its owner died before all could see that it has a header? Then here it is. */
static void put_in_place(struct relay_ring *ring, const struct relay_ring_claim *claim, uint64_t pos, uint64_t length)
{
	struct relay_ring_place place = {.pos = pos,
	                                 .end = pos + relay_ring_total(length),
	                                 .number = __atomic_load_n(&claim->number, __ATOMIC_RELAXED)};
	uint64_t header = relay_ring_header(ring, pos, (uint32_t)length | RELAY_RING_BUSY);
	if (!relay_ring_is_published(ring, &place))
		/* Relaxed: published by what follows. */
		__atomic_store_n((uint64_t *)relay_ring_at(ring, pos), header, __ATOMIC_RELAXED);
	relay_ring_publish_dead(ring, &place);
}

/* A reservation of the dead. */
static void reap_record(struct relay_ring *ring, struct relay_ring_claim *claim, uint64_t word)
{
	uint64_t pos = word & RELAY_POSITION_MASK, length = __atomic_load_n(&claim->length, __ATOMIC_RELAXED);
	if (length > RELAY_RING_RECORD_MAX || pos % 8)
		return;
	if (ring->scheme != RELAY_RSEQ)
		put_in_place(ring, claim, pos, length);
	uint32_t *header = relay_ring_length_at(ring, pos);
	/* Acquire, and in this order: what is not passed after it was seen BUSY was this record's. */
	uint32_t seen = __atomic_load_n(header, __ATOMIC_ACQUIRE);
	if (!(seen & RELAY_RING_BUSY) || (int64_t)(relay_ring_floor(ring) - pos) > 0)
		return;
	uint64_t torn = __atomic_load_n(&claim->word.second, __ATOMIC_RELAXED);
	if ((word & RELAY_CLAIM_STATE) == RELAY_CLAIM_TAKEN)
		relay_u128_cmpxchg(&claim->word, word, torn, RELAY_RING_REAPED | pos, torn + 1);
	__atomic_store_n(header, (uint32_t)length | RELAY_RING_DISCARD, __ATOMIC_RELEASE);
}

/* End the claim of a dead owner. The caller is its reaper. */
static void end_claim(struct relay_ring *ring, struct relay_ring_claim *claim)
{
	relay_ring_claims_help(ring);
	uint64_t word = relay_ring_claim_word(claim), state = word & RELAY_CLAIM_STATE;
	if (state == RELAY_CLAIM_TAKEN || state == RELAY_RING_REAPED)
		reap_record(ring, claim, word);
	__atomic_store_n(&claim->word.first, RELAY_CLAIM_FREE, __ATOMIC_RELEASE);
	__atomic_store_n(&claim->in_use, 0, __ATOMIC_RELEASE);
	/* The token goes first: it must never stand beside a new owner. */
	__atomic_store_n(&claim->token, 0, __ATOMIC_RELEASE);
	__atomic_store_n(&claim->owner, 0, __ATOMIC_RELEASE);
	relay_ring_wake(ring, word & RELAY_POSITION_MASK, 0);
}

/* `gone`: the caller knows that the owner is dead. */
static bool reap(struct relay_ring *ring, struct relay_ring_claim *claim, bool gone)
{
	uint64_t owner = __atomic_load_n(&claim->owner, __ATOMIC_ACQUIRE), self = relay_owner_self();
	if (!owner || (!gone && relay_owner_alive(owner)))
		return false;
	uint64_t reaper = __atomic_load_n(&claim->reaper, __ATOMIC_ACQUIRE);
	if ((reaper && relay_owner_alive(reaper)) || !change(&claim->reaper, reaper, self))
		return false;
	/* A dead owner stays until its reaper is done: is it still this one? */
	bool same = __atomic_load_n(&claim->owner, __ATOMIC_ACQUIRE) == owner;
	if (same)
		end_claim(ring, claim);
	change(&claim->reaper, self, 0);
	return same;
}

int relay_ring_claims_reap_at(struct relay_ring *ring, uint64_t pos)
{
	relay_ring_claims_help(ring);
	for (uint32_t i = 0; i < n_used(ring); i++) {
		uint64_t word = relay_ring_claim_word(&ring->claims[i]), state = word & RELAY_CLAIM_STATE;
		if ((word & RELAY_POSITION_MASK) == (pos & RELAY_POSITION_MASK) &&
		    (state == RELAY_CLAIM_TAKEN || state == RELAY_RING_REAPED))
			return reap(ring, &ring->claims[i], false);
	}
	return -ENOENT;
}

int relay_ring_resolve(struct relay_ring *ring, uint64_t token)
{
	int n = 0;
	for (uint32_t i = 0; i < n_used(ring); i++) {
		struct relay_ring_claim *claim = &ring->claims[i];
		n += reap(ring, claim, token && __atomic_load_n(&claim->token, __ATOMIC_ACQUIRE) == token);
	}
	return n;
}

uint64_t relay_ring_claims_torn(const struct relay_ring *ring)
{
	uint64_t n = 0;
	for (uint32_t i = 0; i < n_used(ring); i++) {
		uint64_t more = __atomic_load_n(&ring->claims[i].word.second, __ATOMIC_RELAXED);
		/* More than there can be stays more than there can be: who asks checks the sum. */
		n = more > UINT64_MAX - n ? UINT64_MAX : n + more;
	}
	return n;
}
