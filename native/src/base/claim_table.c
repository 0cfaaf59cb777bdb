/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "base/claim_table.h"

#include "base/quiet.h"

#include <sched.h>

enum {
	DOUBTED_ROUNDS = 4, /* as long as nobody has found a claim since a search was in vain */
	LOOK_FOR_DEAD = 64 /* one search of so many that find none to keep asks who is dead, which costs system calls */
};

__thread uint64_t relay_claims_cached[RELAY_N_CLAIMS_CACHED] RELAY_TLS;

static bool cmpxchg(uint64_t *at, uint64_t from, uint64_t to)
{
	/* Of `thread`: pairs with relay_claim_disown() in base/claim_table.h. Of `reaper`: with become_reaper() and reap_claim(). */
	return __atomic_compare_exchange_n(at, &from, to, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

/* --- taking --- */

/* Only claims below n_used are looked at: raise it before the claim is used. */
static void raise_used(const struct relay_claim_table *table, uint32_t n)
{
	/* The compare-and-swap, which checks what is loaded here, pairs with relay_claim_table_n_used() in base/claim_table.h. */
	uint32_t old = __atomic_load_n(table->n_used, __ATOMIC_RELAXED);
	while (old < n &&
	       !__atomic_compare_exchange_n(table->n_used, &old, n, true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
		;
}

static bool is_free(const struct relay_claim_table *table, uint32_t i)
{
	/* Pairs with relay_claim_release() in buffer/claims.h, relay_ring_claim_release() in ring/claims.h and whoever else stores
	 * RELAY_CLAIM_FREE: what they did to it before. */
	return __atomic_load_n(relay_claim_word_at(table, i), __ATOMIC_ACQUIRE) == RELAY_CLAIM_FREE;
}

/* Use a claim that belongs to this thread. false: a handler uses it, or it waits for somebody else. */
static bool try_use(const struct relay_claim_table *table, uint32_t i)
{
	struct relay_claim_owner *owner = relay_claim_owner_at(table, i);
	if (!relay_claim_use(owner))
		return false;
	/* Not before: a handler may have left a hole there. */
	if (is_free(table, i))
		return true;
	/* Pairs with relay_claim_use() in base/claim_table.h. */
	__atomic_store_n(&owner->in_use, 0, __ATOMIC_RELEASE);
	return false;
}

/* May this thread, the claim's owner, keep using it? Not if another open file's token is in it: the file server ends that file's
 * claims when the file is closed, while this one stays open. */
static bool is_ours(const struct relay_claim_table *table, uint32_t i, const struct relay_claim_owner *owner)
{
	/* Relaxed: this thread stored the owner's; the table's was published by its id, see relay_claim_table_renew(). */
	uint64_t token = __atomic_load_n(&owner->token, __ATOMIC_RELAXED);
	return i < RELAY_N_CLAIMS_KEPT && (!token || token == __atomic_load_n(&table->token, __ATOMIC_RELAXED));
}

/* Take claim i: one without an owner, or one that this thread owns and does not use. false: neither. */
static bool try_own(const struct relay_claim_table *table, uint32_t i, uint64_t self)
{
	struct relay_claim_owner *owner = relay_claim_owner_at(table, i);
	/* Pairs with relay_claim_disown() in base/claim_table.h; in_use below, with relay_claim_leave() there. */
	uint64_t now = __atomic_load_n(&owner->thread, __ATOMIC_ACQUIRE);
	if ((now && (now != self || !is_ours(table, i, owner))) || !is_free(table, i) ||
	    __atomic_load_n(&owner->in_use, __ATOMIC_ACQUIRE))
		return false;
	if (!now && !cmpxchg(&owner->thread, 0, self))
		return false;
	/* Relaxed: relay_claim_table_resolve() looks for the token after its open file was closed, which comes after this. */
	__atomic_store_n(&owner->token, __atomic_load_n(&table->token, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
	raise_used(table, i + 1);
	/* false: a handler took the claim, or left a hole in it. A claim that may be kept stays this thread's. */
	bool is_used = try_use(table, i);
	if (!is_used && i >= RELAY_N_CLAIMS_KEPT)
		relay_claim_disown(owner);
	return is_used;
}

static uint32_t find_in(const struct relay_claim_table *table, uint32_t from, uint32_t to)
{
	uint64_t self = relay_owner_self();
	for (uint32_t i = from; i < to; i++)
		if (try_own(table, i, self))
			return i;
	return UINT32_MAX;
}

static bool may_ask(const struct relay_claim_table *table)
{
	return !table->heeds_quiet || !relay_is_quiet();
}

/* One of the last ones. Threads that died in the middle of a switch may have them all. */
static uint32_t find_for_switch(struct relay_claim_table *table, bool resolves)
{
	uint32_t i = find_in(table, table->n_reservations, RELAY_N_CLAIMS);
	if (i == UINT32_MAX && resolves && relay_claim_table_resolve(table, 0))
		i = find_in(table, table->n_reservations, RELAY_N_CLAIMS);
	return i;
}

/* A claim to keep; otherwise one for a single reservation: then the next reservation searches again, and finds a claim to keep as
 * soon as those of dead threads are free. */
static uint32_t find_once(struct relay_claim_table *table, bool for_switch, bool is_first)
{
	uint32_t i = find_in(table, 0, RELAY_N_CLAIMS_KEPT);
	/* Relaxed: only a count. */
	if (i == UINT32_MAX && may_ask(table) &&
	    __atomic_fetch_add(&table->n_unkept, 1, __ATOMIC_RELAXED) % LOOK_FOR_DEAD == 0 &&
	    relay_claim_table_resolve(table, 0))
		i = find_in(table, 0, RELAY_N_CLAIMS_KEPT);
	if (i == UINT32_MAX)
		i = find_in(table, RELAY_N_CLAIMS_KEPT, table->n_reservations);
	return i == UINT32_MAX && for_switch ? find_for_switch(table, is_first && may_ask(table)) : i;
}

static uint32_t find_claim(struct relay_claim_table *table, int rounds, bool for_switch)
{
	/* Relaxed: a hint for the number of rounds, so that a table full of damaged claims does not cost each record all. */
	bool doubts = __atomic_load_n(&table->finds_none, __ATOMIC_RELAXED);
	if (doubts && rounds > DOUBTED_ROUNDS)
		rounds = DOUBTED_ROUNDS;
	uint32_t i = find_once(table, for_switch, true);
	for (int round = 1; i == UINT32_MAX && round < rounds; round++) {
		/* All are in use at this moment. */
		sched_yield();
		i = find_once(table, for_switch, false);
	}
	/* Relaxed: the same hint. */
	if (doubts != (i == UINT32_MAX))
		__atomic_store_n(&table->finds_none, !doubts, __ATOMIC_RELAXED);
	return i;
}

uint32_t relay_claim_table_find(struct relay_claim_table *table, int rounds, bool for_switch)
{
	/* The key of before the search. Pairs with the release in relay_claim_table_renew(): if the id or the fork epoch changes
	 * during the search, the cached key does not match, and the next call searches again. */
	uint32_t id = __atomic_load_n(&table->id, __ATOMIC_ACQUIRE);
	uint64_t key = relay_claim_key(id);
	uint32_t i = find_claim(table, rounds, for_switch);
	if (i < RELAY_N_CLAIMS_KEPT)
		relay_claims_cached[id % RELAY_N_CLAIMS_CACHED] = key | i;
	return i;
}

void relay_claim_table_renew(struct relay_claim_table *table, uint64_t token)
{
	static uint32_t last_id;
	/* Relaxed: published by the id. */
	__atomic_store_n(&table->token, token, __ATOMIC_RELAXED);
	/* Pairs with the acquire in relay_claim_kept() in base/claim_table.h, and in relay_claim_table_find(). */
	__atomic_store_n(&table->id, __atomic_add_fetch(&last_id, 1, __ATOMIC_RELAXED), __ATOMIC_RELEASE);
}

/* --- the dead --- */

static bool become_reaper(struct relay_claim_owner *owner)
{
	/* Pairs with the compare-and-swap to 0 in reap_claim(). */
	uint64_t reaper = __atomic_load_n(&owner->reaper, __ATOMIC_ACQUIRE);
	return (!reaper || !relay_owner_alive(reaper)) && cmpxchg(&owner->reaper, reaper, relay_owner_self());
}

static bool end_claim(struct relay_claim_table *table, uint32_t i, struct relay_claim_owner *owner)
{
	if (!table->end(table, i))
		return false;
	/* Pairs with try_own(). */
	__atomic_store_n(&owner->in_use, 0, __ATOMIC_RELEASE);
	relay_claim_disown(owner);
	return true;
}

/* `dead` was the owner. true: the claim has changed, or is somebody else's by now. */
static bool reap_claim(struct relay_claim_table *table, uint32_t i, uint64_t dead)
{
	struct relay_claim_owner *owner = relay_claim_owner_at(table, i);
	bool is_given_up = table->give_up && table->give_up(table, i, dead);
	if (!become_reaper(owner))
		return is_given_up;
	/* A dead owner stays until its reaper is done: is it still this one? If not, somebody else was faster. Pairs with
	 * relay_claim_disown() in base/claim_table.h. */
	bool is_ended = __atomic_load_n(&owner->thread, __ATOMIC_ACQUIRE) != dead || end_claim(table, i, owner);
	cmpxchg(&owner->reaper, relay_owner_self(), 0);
	return is_ended || is_given_up;
}

static bool is_dead(const struct relay_claim_table *table, uint64_t owner)
{
	return owner && may_ask(table) && !relay_owner_alive(owner);
}

bool relay_claim_table_reap(struct relay_claim_table *table, uint32_t i)
{
	/* Pairs with the compare-and-swap in try_own(). */
	uint64_t owner = __atomic_load_n(&relay_claim_owner_at(table, i)->thread, __ATOMIC_ACQUIRE);
	return is_dead(table, owner) && reap_claim(table, i, owner);
}

int relay_claim_table_resolve(struct relay_claim_table *table, uint64_t token)
{
	int n = 0;
	for (uint32_t i = 0; i < relay_claim_table_n_used(table); i++) {
		const struct relay_claim_owner *owner = relay_claim_owner_at(table, i);
		/* Owner before token; relay_claim_leave() and end_claim() clear the token first, so that a token that is found here is
		 * of `now` or of a later owner, which reap_claim() notices. */
		uint64_t now = __atomic_load_n(&owner->thread, __ATOMIC_ACQUIRE);
		bool is_gone = now && token && __atomic_load_n(&owner->token, __ATOMIC_ACQUIRE) == token;
		n += (is_gone || is_dead(table, now)) && reap_claim(table, i, now);
	}
	return n;
}
