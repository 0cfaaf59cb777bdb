/* SPDX-License-Identifier: MIT */
/*
 * A table of claims in shared memory. A claim describes a reservation that is under way, so that other threads can
 * finish or undo it if the thread that made it dies. This file knows which thread owns which claim, and frees the
 * claims of dead threads. What a claim says of its reservation is defined by the two users of this file:
 * buffer/claims.c for relay buffers and ring/claims.c for record rings.
 *
 *     |word|three words of the user|struct relay_claim_owner|      a claim, RELAY_CLAIM_BYTES
 *
 *     claims 0 .. RELAY_N_CLAIMS_KEPT   A thread that has taken one owns it until the thread is dead and another one
 *                                       needs the claim. The owner takes it again without a locked instruction.
 *     .. n_reservations                 A thread that finds no claim to keep takes one for a single reservation.
 *     .. RELAY_N_CLAIMS                 Only relay_claim_table_find() with for_switch takes these.
 *
 * The states of a word, head, and switches of sub-buffers are described in <relayfs/layout.h> and buffer/claims.c.
 *
 * A thread may use a claim once it has set in_use from 0 to 1 and has then found RELAY_CLAIM_FREE in the word. If the
 * word is something else while in_use is 0, another thread has to free the claim first; for example, a reader frees a
 * hole.
 *
 * One thread at a time, the reaper, ends the claim of a dead thread. If the reaper dies, another thread becomes the
 * reaper and calls `end` again, which may have been done in part.
 */
#ifndef RELAYFS_BASE_CLAIM_TABLE_H
#define RELAYFS_BASE_CLAIM_TABLE_H

#include "base/cpu.h"
#include "base/owner.h"

#include <relayfs/inline/claims.h>
#include <stdbool.h>
#include <stddef.h>

RELAY_STATIC_ASSERT(RELAY_N_CLAIMS <= 256, "a key has 8 bits for a claim");

/* This process's view of a table. */
struct relay_claim_table {
	union {
		struct relay_inline_table fast; /* what programs know of it */
		struct {
			RELAY_INLINE_TABLE_MEMBERS;
		};
	};
	uint32_t *n_used;        /* in shared memory: claims that were ever taken have smaller numbers */
	uint32_t n_reservations; /* claims from this number on are for switches */
	/*
	 * What to do with claim i, whose owner, the thread `dead`, has died.
	 *
	 * give_up    Do what readers and writers wait for. Several threads may call it at once. Returns true if the
	 *            claim was changed or has another owner by now. NULL in rings, where `end` does everything.
	 * end        Called by the reaper: store a word that names no reservation of the dead thread. Returns false if
	 *            the claim is still TAKEN or the head is damaged; then the dead thread stays its owner.
	 */
	bool (*give_up)(struct relay_claim_table *table, uint32_t i, uint64_t dead);
	bool (*end)(struct relay_claim_table *table, uint32_t i);
	bool heeds_quiet;  /* quiet threads (base/quiet.h) do not call relay_owner_alive(), which makes system calls */
	uint32_t n_unkept; /* searches that did not at once find a claim to keep */
	bool finds_none;   /* the last search found no claim */
	uint64_t token;    /* the file server's number of the open file that this process has mapped; 0: none */
};

static inline uint64_t *relay_claim_word_at(const struct relay_claim_table *table, uint32_t i)
{
	return (uint64_t *)(table->claims + (size_t)i * RELAY_CLAIM_BYTES);
}

static inline struct relay_claim_owner *relay_claim_owner_at(const struct relay_claim_table *table, uint32_t i)
{
	return (struct relay_claim_owner *)(table->claims + (size_t)i * RELAY_CLAIM_BYTES + RELAY_CLAIM_OWNER_AT);
}

/* How many claims, from number 0 on, may have been taken; at most RELAY_N_CLAIMS, whatever shared memory holds. */
static inline uint32_t relay_claim_table_n_used(const struct relay_claim_table *table)
{
	/* Pairs with raise_used() in base/claim_table.c, which raises the count before the claim is used. */
	uint32_t n = __atomic_load_n(table->n_used, __ATOMIC_ACQUIRE);
	return n < RELAY_N_CLAIMS ? n : RELAY_N_CLAIMS;
}

/* Remove the owner of a claim. */
static inline void relay_claim_disown(struct relay_claim_owner *owner)
{
	/* The token is cleared before the owner, so that relay_claim_table_resolve() never takes it for a new
	 * owner's. */
	__atomic_store_n(&owner->token, 0, __ATOMIC_RELEASE);
	/* Pairs with the compare-and-swap in try_own() in base/claim_table.c. */
	__atomic_store_n(&owner->thread, 0, __ATOMIC_RELEASE);
}

/* End the use of claim number i. The caller has stored the claim's word before. */
static inline void relay_claim_leave(struct relay_claim_owner *owner, ptrdiff_t i)
{
	relay_inline_leave(owner);
	if (__builtin_expect(i >= RELAY_N_CLAIMS_KEPT, 0))
		relay_claim_disown(owner);
}

/*
 * Take a claim for the calling thread. Returns its number; its in_use is 1 and its word RELAY_CLAIM_FREE. Returns
 * UINT32_MAX if each claim that may be taken belongs to another thread, is in use, or has a word that another thread
 * has to free. A claim of a dead thread counts as owned until it is reaped; only some searches do that, because it
 * costs system calls. Async-signal-safe.
 *
 * rounds       how often to search; the thread yields between two searches, so with 1 it never yields
 * for_switch   also search the claims from n_reservations on
 */
uint32_t relay_claim_table_find(struct relay_claim_table *table, int rounds, bool for_switch);

/* If the owner of claim i is dead, call give_up and end for it. Returns true if the claim has changed or has another
 * owner by now; false if it has no owner, the owner lives or this thread may not find out, or another reaper does all
 * that is left to do. */
bool relay_claim_table_reap(struct relay_claim_table *table, uint32_t i);

/* Reap each claim whose owner is dead and, if token is not 0, each claim with this token even if its owner lives.
 * Returns the number of claims that relay_claim_table_reap() would return true for. */
int relay_claim_table_resolve(struct relay_claim_table *table, uint64_t token);

/* Set the token of claims that are taken from now on, and a new table id, so that no thread uses a claim from its
 * cache. */
void relay_claim_table_renew(struct relay_claim_table *table, uint64_t token);

#endif
