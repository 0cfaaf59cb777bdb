/* SPDX-License-Identifier: MIT */
/*
 * A table of claims in shared memory: who holds which, and what happens to those of the dead. What a claim's word says of what
 * is claimed is the engine's, a relay buffer's (buffer/claims.c) or a record ring's (ring/claims.c).
 *
 *     |word|three words of the engine|struct relay_claim_owner|      a claim, RELAY_CLAIM_BYTES
 *
 *     claims 0 .. RELAY_N_CLAIMS_KEPT    belong to the thread that took one until it dies and somebody needs it: to take it again
 *                                        takes no locked instruction
 *     .. n_reservations                  taken for a single reservation, by threads that come when all others are owned
 *     .. RELAY_N_CLAIMS                  left for relay_claim_table_find(..., true)
 *
 * A claim is the caller's to use once in_use is 1 and its word is RELAY_CLAIM_FREE. A claim whose word says something else while
 * in_use is 0 waits for somebody else, as a hole does for a reader.
 *
 * One thread at a time ends the claim of a dead thread: its reaper. When the reaper dies, another thread takes its place; so an
 * engine's `end` may be called again for what it has done in part.
 */
#ifndef RELAYFS_BASE_CLAIM_TABLE_H
#define RELAYFS_BASE_CLAIM_TABLE_H

#include "base/libc.h"
#include "base/owner.h"

#include <relayfs/layout.h>
#include <stdbool.h>
#include <stddef.h>

enum { RELAY_N_CLAIMS_CACHED = 16 };
RELAY_STATIC_ASSERT(RELAY_N_CLAIMS <= 256, "a key has 8 bits for a claim");

struct relay_claim_table {
	unsigned char *claims;
	uint32_t *n_used; /* shared: claims ever taken are below it */
	uint32_t n_reservations;
	/*
	 * The thread `dead` has died with this claim.
	 *
	 * give_up    do what readers and writers wait for; several threads may call it at once. true: the claim was changed, or
	 *            has another owner. NULL: `end` does everything (rings)
	 * end        called by the reaper: leave a word that does not name a reservation of the dead thread. false: the claim is
	 *            still TAKEN or the head is damaged, so that the dead thread stays its owner
	 */
	bool (*give_up)(struct relay_claim_table *table, uint32_t i, uint64_t dead);
	bool (*end)(struct relay_claim_table *table, uint32_t i);
	bool heeds_quiet;  /* quiet threads (base/quiet.h) do not ask who is dead */
	uint32_t id;       /* unique in this process, for what threads keep */
	uint32_t n_unkept; /* times that no claim to keep was found at once */
	bool finds_none;   /* the last search for a claim was in vain */
	uint64_t token;    /* the file server's name for our open file */
};

/* Which claim this thread keeps in which table, at the table's id modulo RELAY_N_CLAIMS_CACHED: see relay_claim_key(). One word,
 * so that a signal handler that stores another one leaves nothing half stored. */
extern __thread uint64_t relay_claims_cached[RELAY_N_CLAIMS_CACHED] RELAY_TLS;

/* |id of the table 32|relay_fork_epoch 24|claim 8|, of claim 0 */
static inline uint64_t relay_claim_key(uint32_t table_id)
{
	uint32_t epoch = __atomic_load_n(&relay_fork_epoch, __ATOMIC_RELAXED);
	return (uint64_t)table_id << 32 | (uint64_t)(epoch << 8);
}

static inline uint64_t *relay_claim_word_at(const struct relay_claim_table *table, uint32_t i)
{
	return (uint64_t *)(table->claims + (size_t)i * RELAY_CLAIM_BYTES);
}

static inline struct relay_claim_owner *relay_claim_owner_at(const struct relay_claim_table *table, uint32_t i)
{
	return (struct relay_claim_owner *)(table->claims + (size_t)i * RELAY_CLAIM_BYTES + RELAY_CLAIM_OWNER_AT);
}

/* How many claims there are to look at. */
static inline uint32_t relay_claim_table_n_used(const struct relay_claim_table *table)
{
	/* Pairs with raise_used(). */
	uint32_t n = __atomic_load_n(table->n_used, __ATOMIC_ACQUIRE);
	return n < RELAY_N_CLAIMS ? n : RELAY_N_CLAIMS;
}

/* The claim that this thread keeps in this table, in use or not; RELAY_N_CLAIMS or more: none. */
static inline uint64_t relay_claim_kept(const struct relay_claim_table *table)
{
	/* Pairs with the release in relay_claim_table_renew(): what is found for a new id has the new token. */
	uint32_t id = __atomic_load_n(&table->id, __ATOMIC_ACQUIRE);
	return relay_claims_cached[id % RELAY_N_CLAIMS_CACHED] ^ relay_claim_key(id);
}

/*
 * Set in_use of a claim that belongs to this thread. false: in_use was 1. Only signal handlers of this thread set in_use at the
 * same time, so that cmpxchg needs no lock prefix. A cmpxchg that fails stores the old value back; the load before it avoids
 * that while in_use is 1, because another thread may commit the reservation and store 0 at that moment.
 */
static inline bool relay_claim_use(struct relay_claim_owner *owner)
{
	uint64_t was = 0;
	/* Pairs with the release in relay_claim_leave(): the last word before it. */
	if (__atomic_load_n(&owner->in_use, __ATOMIC_ACQUIRE))
		return false;
#if defined(__x86_64__)
	bool is_used;
	__asm__ volatile("cmpxchgq %[one], %[in_use]"
	                 : "=@ccz"(is_used), [in_use] "+m"(owner->in_use), "+a"(was)
	                 : [one] "r"(1ull)
	                 : "memory");
	return is_used;
#else
	return __atomic_compare_exchange_n(&owner->in_use, &was, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
#endif
}

/* Let a claim have no owner. */
static inline void relay_claim_disown(struct relay_claim_owner *owner)
{
	/* The token goes first: it must never stand beside a new owner. */
	__atomic_store_n(&owner->token, 0, __ATOMIC_RELEASE);
	/* Pairs with the compare-and-swap in try_own(). */
	__atomic_store_n(&owner->thread, 0, __ATOMIC_RELEASE);
}

/* Done with claim number i. The caller has stored its last word. */
static inline void relay_claim_leave(struct relay_claim_owner *owner, ptrdiff_t i)
{
	/* After the word: then a signal handler may use it. */
	__atomic_store_n(&owner->in_use, 0, __ATOMIC_RELEASE);
	if (__builtin_expect(i >= RELAY_N_CLAIMS_KEPT, 0))
		relay_claim_disown(owner);
}

/* Take a claim for the calling thread: in_use is 1, and the word is RELAY_CLAIM_FREE. UINT32_MAX: each claim that may be taken
 * belongs to another thread, is in use, or waits as a hole for readers. Claims of dead threads count as theirs until a search
 * reaps them, which one search in LOOK_FOR_DEAD does. Async-signal-safe.
 *
 * rounds       how often to search; the thread yields between two searches, so with 1 it never yields
 * for_switch   also search the claims from n_reservations on */
uint32_t relay_claim_table_find(struct relay_claim_table *table, int rounds, bool for_switch);

/* If the claim's owner is dead, give up what it claims. true: the claim has changed, or has another owner by now. false: nobody
 * has it, its owner lives or cannot be asked about, or all that is left to do is another reaper's. */
bool relay_claim_table_reap(struct relay_claim_table *table, uint32_t i);

/* Reap each claim whose owner is dead and, if token is not 0, each claim with this token even if its owner lives. Returns how many
 * claims have changed. */
int relay_claim_table_resolve(struct relay_claim_table *table, uint64_t token);

/* Store the token that claims taken from now on carry, and a new table id, which makes the cached claims void. */
void relay_claim_table_renew(struct relay_claim_table *table, uint64_t token);

#endif
