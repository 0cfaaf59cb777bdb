/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "base/claim_table.h"

#include "base/quiet.h"

#include <sched.h>

enum {
	ROUNDS_AFTER_FAILURE = 4, /* at most, if the last search found no claim */
	SEARCHES_PER_RESOLVE = 64 /* of those that find no claim to keep, one of so many reaps dead threads' claims */
};

__thread struct relay_thread_claims relay_thread_claims RELAY_TLS = {.fork_epoch = 1};

/* Change relay_claim_owner.thread or .reaper. */
static bool cmpxchg(uint64_t *at, uint64_t from, uint64_t to)
{
	/* For `thread`, pairs with relay_claim_disown() in base/claim_table.h: the owner before is done with the claim.
	 * For `reaper`, pairs with itself, as become_reaper() and reap_claim() call it: the reaper before is done. */
	return __atomic_compare_exchange_n(at, &from, to, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

/* --- taking a claim --- */

/* Raise n_used to n before claim n - 1 is used, because other threads examine only the claims below n_used. */
static void raise_used(const struct relay_claim_table *table, uint32_t n)
{
	/* Relaxed, because the compare-and-swap checks the value. That pairs with relay_claim_table_n_used() in
	 * base/claim_table.h: a thread that sees the claim's reservation also sees the count. */
	uint32_t old = __atomic_load_n(table->n_used, __ATOMIC_RELAXED);
	while (old < n &&
	       !__atomic_compare_exchange_n(table->n_used, &old, n, true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
		;
}

static bool is_free(const struct relay_claim_table *table, uint32_t i)
{
	/* Pairs with relay_claim_release() in buffer/claims.h, relay_ring_claim_release() in ring/claims.h and all
	 * other stores of RELAY_CLAIM_FREE: what those threads did to the claim before is seen after this load. */
	return __atomic_load_n(relay_claim_word_at(table, i), __ATOMIC_ACQUIRE) == RELAY_CLAIM_FREE;
}

/* Set in_use of a claim that this thread owns. Returns false if a signal handler uses the claim, or its word is not
 * free. */
static bool try_use(const struct relay_claim_table *table, uint32_t i)
{
	struct relay_claim_owner *owner = relay_claim_owner_at(table, i);
	if (!relay_claim_use(owner))
		return false;
	/* Checked after in_use was set, because a signal handler may have made the claim a hole just before. */
	if (is_free(table, i))
		return true;
	relay_inline_leave(owner);
	return false;
}

/* True if this thread, the owner of claim i, may use it again. If the claim has the token of another open file, it may
 * not: when that file is closed, the file server ends the file's claims, although the file that is mapped now is still
 * open. */
static bool may_use_again(const struct relay_claim_table *table, uint32_t i, const struct relay_claim_owner *owner)
{
	/* Relaxed: this thread stored owner->token itself; table->token is published by the release of table->id in
	 * relay_claim_table_renew(), which relay_claim_table_find() has loaded with acquire. */
	uint64_t token = __atomic_load_n(&owner->token, __ATOMIC_RELAXED);
	return i < RELAY_N_CLAIMS_KEPT && (!token || token == __atomic_load_n(&table->token, __ATOMIC_RELAXED));
}

/* Take claim i if it has no owner, or if this thread owns it and does not use it. */
static bool try_own(const struct relay_claim_table *table, uint32_t i, uint64_t self)
{
	struct relay_claim_owner *owner = relay_claim_owner_at(table, i);
	/* Pairs with relay_claim_disown() in base/claim_table.h, and the load of in_use below with relay_claim_leave()
	 * there: the owner before is done with the claim. */
	uint64_t now = __atomic_load_n(&owner->thread, __ATOMIC_ACQUIRE);
	if ((now && (now != self || !may_use_again(table, i, owner))) || !is_free(table, i) ||
	    __atomic_load_n(&owner->in_use, __ATOMIC_ACQUIRE))
		return false;
	if (!now && !cmpxchg(&owner->thread, 0, self))
		return false;
	/* Relaxed: relay_claim_table_resolve() looks for this token only after the open file was closed, which is
	 * later. */
	__atomic_store_n(&owner->token, __atomic_load_n(&table->token, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
	raise_used(table, i + 1);
	/* If a signal handler has taken the claim or made it a hole, this thread stays the owner only of a claim that
	 * it may keep. */
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

/* True if this thread may call relay_owner_alive(), which makes system calls. */
static bool may_check_owners(const struct relay_claim_table *table)
{
	return !table->heeds_quiet || !relay_is_quiet();
}

/* Take a claim that is reserved for switches. resolves: reap claims if none is free, because threads that died in the
 * middle of a switch may own all of them. */
static uint32_t find_for_switch(struct relay_claim_table *table, bool resolves)
{
	uint32_t i = find_in(table, table->n_reservations, RELAY_N_CLAIMS);
	if (i == UINT32_MAX && resolves && relay_claim_table_resolve(table, 0))
		i = find_in(table, table->n_reservations, RELAY_N_CLAIMS);
	return i;
}

/* One search. A claim to keep is preferred. A thread that takes one for a single reservation searches again at its next
 * reservation, and so gets a claim to keep soon after a dead thread's claims were reaped. */
static uint32_t find_once(struct relay_claim_table *table, bool for_switch, bool is_first)
{
	uint32_t i = find_in(table, 0, RELAY_N_CLAIMS_KEPT);
	/* Relaxed: only a count. */
	if (i == UINT32_MAX && may_check_owners(table) &&
	    __atomic_fetch_add(&table->n_unkept, 1, __ATOMIC_RELAXED) % SEARCHES_PER_RESOLVE == 0 &&
	    relay_claim_table_resolve(table, 0))
		i = find_in(table, 0, RELAY_N_CLAIMS_KEPT);
	if (i == UINT32_MAX)
		i = find_in(table, RELAY_N_CLAIMS_KEPT, table->n_reservations);
	return i == UINT32_MAX && for_switch ? find_for_switch(table, is_first && may_check_owners(table)) : i;
}

static uint32_t find_claim(struct relay_claim_table *table, int rounds, bool for_switch)
{
	/* Relaxed: only a hint. With it, a record costs fewer rounds while all claims are damaged. */
	bool found_none = __atomic_load_n(&table->finds_none, __ATOMIC_RELAXED);
	if (found_none && rounds > ROUNDS_AFTER_FAILURE)
		rounds = ROUNDS_AFTER_FAILURE;
	uint32_t i = find_once(table, for_switch, true);
	for (int round = 1; i == UINT32_MAX && round < rounds; round++) {
		/* A thread that uses one of the claims may run now, and free it. */
		sched_yield();
		i = find_once(table, for_switch, false);
	}
	/* Relaxed: the same hint. */
	if (found_none != (i == UINT32_MAX))
		__atomic_store_n(&table->finds_none, !found_none, __ATOMIC_RELAXED);
	return i;
}

uint32_t relay_claim_table_find(struct relay_claim_table *table, int rounds, bool for_switch)
{
	/* Pairs with the release in relay_claim_table_renew(): try_own() stores the token that belongs to this id, or a
	 * later one. The key is made before the search: if the id or the fork epoch changes meanwhile, the next call
	 * does not find the cached claim, and searches again. */
	uint32_t id = __atomic_load_n(&table->id, __ATOMIC_ACQUIRE);
	uint64_t key = relay_claim_key(id);
	uint32_t i = find_claim(table, rounds, for_switch);
	if (i < RELAY_N_CLAIMS_KEPT)
		relay_thread_claims.cached[id % RELAY_N_CLAIMS_CACHED] = key | i;
	return i;
}

void relay_claim_table_renew(struct relay_claim_table *table, uint64_t token)
{
	static uint32_t last_id;
	/* Relaxed: published by the store of the id below. */
	__atomic_store_n(&table->token, token, __ATOMIC_RELAXED);
	/* Pairs with the acquire in relay_inline_kept() and in relay_claim_table_find(): the token
	 * before the id. The addition is relaxed: it only makes the id unique. */
	__atomic_store_n(&table->id, __atomic_add_fetch(&last_id, 1, __ATOMIC_RELAXED), __ATOMIC_RELEASE);
}

/* --- claims of dead threads --- */

/* Store this thread's owner word in `reaper`. Returns false if a living thread is the reaper. */
static bool become_reaper(struct relay_claim_owner *owner)
{
	/* Pairs with the compare-and-swap to 0 in reap_claim(): the reaper before is done. */
	uint64_t reaper = __atomic_load_n(&owner->reaper, __ATOMIC_ACQUIRE);
	return (!reaper || !relay_owner_alive(reaper)) && cmpxchg(&owner->reaper, reaper, relay_owner_self());
}

static bool end_claim(struct relay_claim_table *table, uint32_t i, struct relay_claim_owner *owner)
{
	if (!table->end(table, i))
		return false;
	/* Pairs with the acquire in try_own(): the claim's word before in_use. */
	__atomic_store_n(&owner->in_use, 0, __ATOMIC_RELEASE);
	relay_claim_disown(owner);
	return true;
}

/* End claim i, whose owner was `dead`. Returns true if the claim has changed or has another owner by now. */
static bool reap_claim(struct relay_claim_table *table, uint32_t i, uint64_t dead)
{
	struct relay_claim_owner *owner = relay_claim_owner_at(table, i);
	bool is_given_up = table->give_up && table->give_up(table, i, dead);
	if (!become_reaper(owner))
		return is_given_up;
	/* Only the reaper removes a dead owner. If `dead` is no longer the owner, an earlier reaper has ended the
	 * claim. Pairs with relay_claim_disown() in base/claim_table.h. */
	bool is_ended = __atomic_load_n(&owner->thread, __ATOMIC_ACQUIRE) != dead || end_claim(table, i, owner);
	cmpxchg(&owner->reaper, relay_owner_self(), 0);
	return is_ended || is_given_up;
}

static bool is_dead(const struct relay_claim_table *table, uint64_t owner)
{
	return owner && may_check_owners(table) && !relay_owner_alive(owner);
}

bool relay_claim_table_reap(struct relay_claim_table *table, uint32_t i)
{
	/* Pairs with the compare-and-swap of the owner in try_own(). */
	uint64_t owner = __atomic_load_n(&relay_claim_owner_at(table, i)->thread, __ATOMIC_ACQUIRE);
	return is_dead(table, owner) && reap_claim(table, i, owner);
}

int relay_claim_table_resolve(struct relay_claim_table *table, uint64_t token)
{
	int n = 0;
	for (uint32_t i = 0; i < relay_claim_table_n_used(table); i++) {
		const struct relay_claim_owner *owner = relay_claim_owner_at(table, i);
		/* The owner is loaded before the token. Both loads pair with relay_claim_disown(), which clears the
		 * token before the owner. So the token is that of `now` or of a later owner; if of a later one,
		 * reap_claim() sees that the owner has changed. */
		uint64_t now = __atomic_load_n(&owner->thread, __ATOMIC_ACQUIRE);
		bool has_token = now && token && __atomic_load_n(&owner->token, __ATOMIC_ACQUIRE) == token;
		n += (has_token || is_dead(table, now)) && reap_claim(table, i, now);
	}
	return n;
}
