/* SPDX-License-Identifier: MIT */
/* The claims of reservations (layout.h), for <relayfs/producer.h> and the library: how a thread finds the claim that it keeps in
 * a buffer or ring, and its latest reservation. */
#ifndef RELAYFS_INLINE_CLAIMS_H
#define RELAYFS_INLINE_CLAIMS_H

#include <relayfs/inline/rseq.h>

#ifdef __cplusplus
extern "C" {
#endif

struct relay_ring;

enum { RELAY_N_CLAIMS_CACHED = 16 };

/* A thread's latest reservation in a channel, by which commit finds the claim without a search. A signal handler may have stored some
 * of the fields, so it is used only if claim and address are those of the reservation that is to be committed. */
struct relay_latest {
	uint64_t pos;
	uint32_t cpu, claim; /* numbers of the buffer and of the claim, which the thread keeps */
};

/* The same in a ring. */
struct relay_ring_latest {
	struct relay_ring *ring[RELAY_INLINE_VERSIONS]; /* at RELAY_INLINE_VERSION; else NULL */
	struct relay_ring *const *entry; /* relay_inline_ring.entry; it is not the ring any more if that was closed */
	uint64_t pos;
	uint32_t claim;
};

/* What a thread knows of its claims and reservations. A signal handler of the thread may change it at any time. */
struct relay_thread_claims {
	struct relay_ring_latest latest_in_ring; /* first in each version, because it is looked at before any ring */
	struct relay_latest latest;
	/* The claims that the thread keeps: an entry is relay_claim_key() plus the number of the claim, at index
	 * id % RELAY_N_CLAIMS_CACHED. It is one word, so that a signal handler cannot leave it half stored. */
	uint64_t cached[RELAY_N_CLAIMS_CACHED];
	/* From 1 on, incremented in the child at each fork() by this thread. What a thread has cached with another value is about
	 * the parent's thread. */
	uint32_t fork_epoch;
};

/* In the library. */
extern __thread struct relay_thread_claims relay_thread_claims RELAY_TLS;

/* The first fields of struct relay_claim_table: this process's view of the claims of a buffer or ring. */
#define RELAY_INLINE_TABLE_MEMBERS                    \
	unsigned char *claims; /* in shared memory */ \
	uint32_t id            /* unique in this process; part of the key in relay_thread_claims */

struct relay_inline_table {
	RELAY_INLINE_TABLE_MEMBERS;
};

/* The cached word for claim 0 of a table: |id of the table 32|fork epoch 24|claim 8|. */
RELAY_INLINE uint64_t relay_claim_key(uint32_t table_id)
{
	return (uint64_t)table_id << 32 | (uint64_t)(relay_thread_claims.fork_epoch << 8);
}

/* The number of the claim that this thread keeps in this table, in use or not; RELAY_N_CLAIMS or more: it keeps
 * none. */
RELAY_INLINE uint64_t relay_inline_kept(const struct relay_inline_table *table)
{
	/* Pairs with the release in relay_claim_table_renew(): a thread that sees the new id also sees the new
	 * token. */
	uint32_t id = __atomic_load_n(&table->id, __ATOMIC_ACQUIRE);
	return relay_thread_claims.cached[id % RELAY_N_CLAIMS_CACHED] ^ relay_claim_key(id);
}

/*
 * Set in_use of a claim that this thread owns. Returns false if in_use was 1. Apart from this thread, only its signal
 * handlers set in_use, so cmpxchg needs no lock prefix. A cmpxchg that fails stores the old value back, and would
 * replace the 0 that another thread stores when it commits the reservation. Therefore in_use is loaded first, and
 * cmpxchg runs only if it was 0.
 */
RELAY_INLINE bool relay_claim_use(struct relay_claim_owner *owner)
{
	/* Pairs with the release in relay_inline_leave(): the word that was stored before is seen after this load. */
	if (__atomic_load_n(&owner->in_use, __ATOMIC_ACQUIRE))
		return false;
	return relay_local_cmpxchg(&owner->in_use, 0, 1);
}

/* End the use of a claim that its owner keeps. The caller has stored the claim's word before. */
RELAY_INLINE void relay_inline_leave(struct relay_claim_owner *owner)
{
	/* Pairs with the acquire in relay_claim_use(): the claim's word before in_use. */
	__atomic_store_n(&owner->in_use, 0, __ATOMIC_RELEASE);
}

/* True if `word` is that of a reservation at `pos` that was announced and is not committed. */
RELAY_INLINE bool relay_inline_is_reserved(uint64_t word, uint64_t pos)
{
	uint64_t state = word ^ (pos & RELAY_POSITION_MASK);
	return state == RELAY_CLAIM_PENDING || state == RELAY_CLAIM_TAKEN;
}

#ifdef __cplusplus
}
#endif
#endif
