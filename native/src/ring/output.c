/* SPDX-License-Identifier: MIT */
/* The producers' functions of <relayfs/ring.h>: writing a record in one step, or by reservation and commit.
 * ring/reserve.c makes the reservations. */
#define _GNU_SOURCE
#include "base/affinity.h"
#include "base/libc.h"
#include "ring/remote.h"
#include "ring/reserve.h"
#include "ring/wake.h"

#include <errno.h>
#include <string.h>

/* After so many aborts, output_anyhow() uses a reservation, because the section is too long to complete between the
 * signals or the stops of a debugger. */
enum { MAX_ABORTS = 8 };

#define WAKEUP_FLAGS (uint64_t)(RELAY_RING_NO_WAKEUP | RELAY_RING_FORCE_WAKEUP)
#define RESERVE_FLAGS (uint64_t)(RELAY_RING_WILL_RETRY)
#define OUTPUT_FLAGS (WAKEUP_FLAGS | RESERVE_FLAGS)

/* --- writing by reservation --- */

/* End a reservation: store the header's first word, with its final length and flags, and free the claim. */
static inline void end_record(struct relay_ring *ring, struct relay_ring_claim *claim, uint64_t pos, uint32_t length,
                              uint64_t flags)
{
	/* Pairs with the acquires in is_record_at() in ring/consume.c and look_once() in ring/consumer.c: the
	 * record's bytes before the header without BUSY. */
	__atomic_store_n(relay_ring_length_at(ring, pos), length, __ATOMIC_RELEASE);
	relay_ring_claim_release(ring, claim);
	relay_ring_wake(ring, pos, flags);
}

/* As memcpy(), but 16 to 64 bytes are copied without a call, as two or four pieces that may overlap. */
static inline void copy(unsigned char *to, const unsigned char *from, size_t length)
{
	enum { PIECE = 16 };
	unsigned char first[PIECE], second[PIECE], third[PIECE], last[PIECE];
	if (__builtin_expect(length - PIECE > 3 * PIECE, 0)) {
		if (length)
			memcpy(to, from, length);
		return;
	}
	memcpy(first, from, PIECE);
	memcpy(last, from + length - PIECE, PIECE);
	if (length > 2 * PIECE) {
		memcpy(second, from + PIECE, PIECE);
		memcpy(third, from + length - 2 * PIECE, PIECE);
		memcpy(to + PIECE, second, PIECE);
		memcpy(to + length - 2 * PIECE, third, PIECE);
	}
	memcpy(to, first, PIECE);
	memcpy(to + length - PIECE, last, PIECE);
}

/* The slow path of output_claimed(), for all cases. */
static __attribute__((noinline)) int output_claimed_anyhow(struct relay_ring *ring, const void *data, size_t length,
                                                           uint64_t flags)
{
	struct relay_ring_claim *claim;
	uint64_t pos;
	int err = relay_ring_reserve_claimed(ring, length, flags & RELAY_RING_WILL_RETRY, &claim, &pos);
	if (err)
		return err;
	copy(relay_ring_at(ring, pos) + RELAY_RING_HEADER_BYTES + ring->time_bytes, data, length);
	end_record(ring, claim, pos, (uint32_t)length + ring->time_bytes, flags);
	return 0;
}

/* The fast path of output_claimed(). Returns false as relay_ring_reserve_again(). */
static inline __attribute__((always_inline)) bool output_again(struct relay_ring *ring, const void *data, size_t length,
                                                               uint64_t flags)
{
	struct relay_ring_claim *claim = NULL;
	uint64_t pos = 0;
	if (__builtin_expect(!relay_ring_reserve_again(ring, length, &claim, &pos), 0))
		return false;
	copy(relay_ring_at(ring, pos) + RELAY_RING_HEADER_BYTES, data, length);
	end_record(ring, claim, pos, (uint32_t)length, flags);
	return true;
}

/* Write a record by reservation, copy and commit. */
static inline int output_claimed(struct relay_ring *ring, const void *data, size_t length, uint64_t flags)
{
	return output_again(ring, data, length, flags) ? 0 : output_claimed_anyhow(ring, data, length, flags);
}

/* --- writing in one restartable section --- */

/* The slow path, for all cases. */
__attribute__((noinline)) static int output_anyhow(struct relay_ring *ring, const void *data, size_t length,
                                                   uint64_t flags)
{
	/* With `times` not: a reader that follows the ring beside its consumer (ring/follow.c) must see where something is being
	 * written, and the section stores before the reservation is seen. */
	for (int aborts = 0; aborts <= MAX_ABORTS && relay_ring_is_quick(ring, length);) {
		struct relay_ring_put put;
		int err = relay_ring_prepare(ring, length, flags & RELAY_RING_WILL_RETRY, 0, &put);
		if (err)
			return err;
		enum relay_rseq_result result = relay_rseq_ring_record(ring->producer, &put, data, length, ring->cpu);
		if (result == RELAY_RSEQ_DONE) {
			relay_ring_wake(ring, put.expect, flags);
			return 0;
		}
		err = result == RELAY_RSEQ_ABORTED ? relay_rseq_misplaced(ring->cpu) : 0;
		if (err)
			return err;
		aborts += result == RELAY_RSEQ_ABORTED;
	}
	return output_claimed(ring, data, length, flags);
}

/* --- writing and reserving on this CPU --- */

/* As relay_ring_output(), but returns RELAY_WRONG_CPU if this thread is not on the ring's CPU (scheme
 * rseq) or the ring is remote. */
static inline __attribute__((always_inline)) int output_here(struct relay_ring *ring, const void *data, size_t length,
                                                             uint64_t flags)
{
	if (ring->scheme != RELAY_RSEQ)
		return output_claimed(ring, data, length, flags);
	uint64_t pos;
	/* relay_inline_output() has tried records of at most RELAY_INLINE_LENGTH_MAX bytes. */
	if (length <= RELAY_INLINE_LENGTH_MAX || !relay_inline_output_at(&ring->fast, data, length, &pos))
		return output_anyhow(ring, data, length, flags);
	relay_ring_wake(ring, pos, flags);
	return 0;
}

/* Note a reservation for its commit; return where its record begins. */
static inline void *noted(struct relay_ring *ring, const struct relay_ring_claim *claim, uint64_t pos)
{
	if (claim - ring->claims < RELAY_N_CLAIMS_KEPT)
		relay_inline_ring_note(ring, (uint64_t)(claim - ring->claims), pos);
	return relay_ring_at(ring, pos) + RELAY_RING_HEADER_BYTES;
}

/* The fast path of reserve_here(). Returns NULL as relay_ring_reserve_again(). */
static inline __attribute__((always_inline)) void *reserve_again(struct relay_ring *ring, size_t length)
{
	struct relay_ring_claim *claim = NULL;
	uint64_t pos = 0;
	return relay_ring_reserve_again(ring, length, &claim, &pos) ? noted(ring, claim, pos) : NULL;
}

/* As relay_ring_reserve(), but returns the error, or RELAY_WRONG_CPU as output_here(). */
static inline int reserve_here(struct relay_ring *ring, size_t length, uint64_t flags, void **record)
{
	*record = reserve_again(ring, length);
	if (__builtin_expect(*record != NULL, 1))
		return 0;
	struct relay_ring_claim *claim;
	uint64_t pos;
	int err = relay_ring_reserve_claimed(ring, length, flags & RELAY_RING_WILL_RETRY, &claim, &pos);
	if (!err)
		*record = (unsigned char *)noted(ring, claim, pos) + ring->time_bytes;
	return err;
}

/* --- writing and reserving on any CPU --- */

/* An act for produce_here(): write, reserve or refuse a record; and its result. */
struct product {
	const void *data; /* a record to write; NULL: reserve one, or ... */
	bool refused;     /* ... count it as too large */
	size_t length;
	uint64_t flags;
	void *record; /* the reservation */
};

static int produce_here(struct relay_ring *ring, struct product *product)
{
	if (product->data)
		return output_here(ring, product->data, product->length, product->flags);
	if (product->refused)
		return relay_ring_refuse_too_large(ring, product->length);
	return reserve_here(ring, product->length, product->flags, &product->record);
}

static int produce_remote(struct relay_ring_remote *remote, struct product *product)
{
	if (product->data)
		return relay_ring_remote_output(remote, product->data, product->length);
	return relay_ring_remote_reserve(remote, product->length, &product->record);
}

/* Carry out `product` after migrating to the ring's CPU, or through the server. */
__attribute__((noinline)) static int produce_there(struct relay_ring *ring, struct product *product)
{
	if (ring->remote)
		return produce_remote(ring->remote, product);
	struct relay_affinity affinity = {.active = false};
	int saved = errno, err;
	do {
		err = relay_migrate(ring->cpu, &affinity);
		if (!err)
			err = produce_here(ring, product);
	} while (err == RELAY_WRONG_CPU);
	relay_migrate_back(&affinity);
	errno = saved;
	return err;
}

/* The ring of the CPU that this thread runs on; NULL: there is none. */
static inline struct relay_ring *ring_of_cpu(const struct relay_rings *rings)
{
	unsigned cpu = relay_rseq_registered() ? relay_rseq_cpu() : (unsigned)sched_getcpu();
	return cpu < rings->n ? rings->ring[cpu] : NULL;
}

/* Carry out `product` in the ring of the CPU that this thread runs on, even if the thread is migrated
 * meanwhile, or through the server. */
__attribute__((noinline)) static int produce_percpu(const struct relay_rings *rings, struct product *product)
{
	for (;;) {
		struct relay_ring *ring = ring_of_cpu(rings);
		if (!ring)
			return -EINVAL;
		int err = produce_here(ring, product);
		if (err != RELAY_WRONG_CPU)
			return err;
		if (ring->remote)
			return produce_remote(ring->remote, product);
	}
}

int relay_ring_output_wake(struct relay_ring *ring, uint64_t pos, uint64_t flags)
{
	if (ring)
		relay_ring_wake(ring, pos, flags);
	return 0;
}

int relay_ring_output(struct relay_ring *ring, const void *data, size_t length, uint64_t flags)
{
	return relay_inline_output(ring, data, length, flags);
}

/* The slow path of relay_ring_output_anyhow(), for all cases. */
static __attribute__((noinline)) int output_anywhere(struct relay_ring *ring, const void *data, size_t length,
                                                     uint64_t flags)
{
	int err = output_here(ring, data, length, flags);
	if (__builtin_expect(err != RELAY_WRONG_CPU, 1))
		return err;
	return produce_there(ring, &(struct product){.data = data ? data : "", .length = length, .flags = flags});
}

/* Not inlined, so that relay_ring_output() saves few registers. The fast path of scheme lockless calls no function in the usual
 * case: registers that calls save are stores, and the locked instruction of the next record waits for all stores. */
__attribute__((noinline)) int relay_ring_output_anyhow(struct relay_ring *ring, const void *data, size_t length,
                                                       uint64_t flags)
{
	if (__builtin_expect(!ring, 0))
		return -EBADF;
	if (__builtin_expect(flags & ~OUTPUT_FLAGS || (!data && length), 0))
		return -EINVAL;
	if (ring->scheme != RELAY_RSEQ && output_again(ring, data, length, flags))
		return 0;
	return output_anywhere(ring, data, length, flags);
}

int relay_ring_refuse(struct relay_ring *ring, size_t length)
{
	if (!ring)
		return -EBADF;
	if (ring->remote)
		return -EOPNOTSUPP;
	struct product product = {.refused = true, .length = length};
	int err = produce_here(ring, &product);
	return err == RELAY_WRONG_CPU ? produce_there(ring, &product) : err;
}

__attribute__((noinline)) static int output_percpu(const struct relay_rings *rings, const void *data, size_t length,
                                                   uint64_t flags)
{
	struct relay_ring *ring = ring_of_cpu(rings);
	if (__builtin_expect(!ring || flags & ~OUTPUT_FLAGS || (!data && length), 0))
		return -EINVAL;
	int err = output_here(ring, data, length, flags);
	if (__builtin_expect(err != RELAY_WRONG_CPU, 1))
		return err;
	return produce_percpu(rings, &(struct product){.data = data ? data : "", .length = length, .flags = flags});
}

/* Not inlined, as above. */
__attribute__((noinline)) int relay_rings_output_anyhow(struct relay_rings *rings, const void *data, size_t length,
                                                        uint64_t flags)
{
	if (!rings)
		return -EBADF;
	if (rings->n == 1)
		return relay_ring_output_anyhow(rings->ring[0], data, length, flags);
	return output_percpu(rings, data, length, flags);
}

int relay_rings_output(struct relay_rings *rings, const void *data, size_t length, uint64_t flags)
{
	return relay_inline_rings_output(rings, data, length, flags);
}

static void *reserved(int err, const struct product *product)
{
	if (!err)
		return product->record;
	errno = -err;
	return NULL;
}

/* The slow path of relay_ring_reserve_anyhow(), for all cases. */
static __attribute__((noinline)) void *reserve_anywhere(struct relay_ring *ring, size_t length, uint64_t flags)
{
	void *record;
	int err = !ring ? -EBADF : flags & ~RESERVE_FLAGS ? -EINVAL : reserve_here(ring, length, flags, &record);
	if (__builtin_expect(!err, 1))
		return record;
	struct product product = {.length = length, .flags = flags};
	return reserved(err == RELAY_WRONG_CPU ? produce_there(ring, &product) : err, &product);
}

/* Calls no function in the usual case, as relay_ring_output_anyhow(). */
__attribute__((noinline)) void *relay_ring_reserve_anyhow(struct relay_ring *ring, size_t length, uint64_t flags)
{
	if (__builtin_expect(ring && !(flags & ~RESERVE_FLAGS) && ring->scheme != RELAY_RSEQ, 1)) {
		void *record = reserve_again(ring, length);
		if (__builtin_expect(record != NULL, 1))
			return record;
	}
	return reserve_anywhere(ring, length, flags);
}

__attribute__((noinline)) static void *reserve_percpu(const struct relay_rings *rings, size_t length, uint64_t flags)
{
	struct relay_ring *ring = ring_of_cpu(rings);
	void *record;
	int err = !ring || flags & ~RESERVE_FLAGS ? -EINVAL : reserve_here(ring, length, flags, &record);
	if (__builtin_expect(!err, 1))
		return record;
	struct product product = {.length = length, .flags = flags};
	return reserved(err == RELAY_WRONG_CPU ? produce_percpu(rings, &product) : err, &product);
}

__attribute__((noinline)) void *relay_rings_reserve_anyhow(struct relay_rings *rings, size_t length, uint64_t flags)
{
	if (!rings || rings->n == 1)
		return relay_ring_reserve_anyhow(rings ? rings->ring[0] : NULL, length, flags);
	return reserve_percpu(rings, length, flags);
}

void *relay_ring_reserve(struct relay_ring *ring, size_t length, uint64_t flags)
{
	void *record = relay_inline_ring_reserve(ring, length, flags);
	return record ? record : relay_ring_reserve_anyhow(ring, length, flags);
}

void *relay_rings_reserve(struct relay_rings *rings, size_t length, uint64_t flags)
{
	void *record = relay_inline_ring_reserve(relay_inline_ring_of_cpu(rings), length, flags);
	return record ? record : relay_rings_reserve_anyhow(rings, length, flags);
}

/* --- ending a reservation --- */

static int finish(const void *record, uint32_t bits, uint64_t flags)
{
	struct relay_ring *ring = relay_ring_of(record);
	if (flags & ~WAKEUP_FLAGS)
		return -EINVAL;
	if (!ring)
		return bits & RELAY_RING_DISCARD ? relay_ring_remote_discard(record) : relay_ring_remote_commit(record);
	struct relay_ring_claim *claim = relay_ring_claim_at(ring, (const char *)record - ring->time_bytes);
	if (!claim)
		return -EINVAL;
	/* Relaxed: only the caller changes the claim. */
	uint64_t pos = __atomic_load_n(&claim->word.first, __ATOMIC_RELAXED) & RELAY_POSITION_MASK;
	uint32_t length = (uint32_t)__atomic_load_n(&claim->length, __ATOMIC_RELAXED);
	end_record(ring, claim, pos, length | bits, flags);
	return 0;
}

__attribute__((noinline)) int relay_ring_commit_anyhow(void *record, uint64_t flags)
{
	return finish(record, 0, flags);
}

__attribute__((noinline)) int relay_ring_discard_anyhow(void *record, uint64_t flags)
{
	return finish(record, RELAY_RING_DISCARD, flags);
}

int relay_ring_commit(void *record, uint64_t flags)
{
	return relay_inline_ring_end(record, 0, flags) ? 0 : relay_ring_commit_anyhow(record, flags);
}

int relay_ring_discard(void *record, uint64_t flags)
{
	return relay_inline_ring_end(record, RELAY_RING_DISCARD, flags) ? 0 : relay_ring_discard_anyhow(record, flags);
}

/* --- relay_ring_query() --- */

/* The bytes between the positions, limited to the ring's size. The positions are loaded one after the other, so
 * their difference may be too large if they change meanwhile or are damaged. */
static uint64_t avail_data(const struct relay_ring *ring)
{
	uint64_t consumed = relay_ring_consumed(ring), floor = relay_ring_floor(ring);
	uint64_t produced = relay_ring_produced(ring), from = (int64_t)(floor - consumed) > 0 ? floor : consumed;
	if ((int64_t)(produced - from) < 0)
		return 0;
	return produced - from < ring->size ? produced - from : ring->size;
}

uint64_t relay_ring_query(const struct relay_ring *ring, uint64_t what)
{
	if (!ring)
		return 0;
	if (ring->remote)
		return relay_ring_remote_query(ring->remote, what);
	switch (what) {
	case RELAY_RING_AVAIL_DATA:
		return avail_data(ring);
	case RELAY_RING_RING_SIZE:
		return ring->size;
	case RELAY_RING_CONS_POS:
		return relay_ring_consumed(ring);
	case RELAY_RING_PROD_POS:
		return relay_ring_produced(ring);
	case RELAY_RING_OVERWRITE_POS:
		return ring->mode == RELAY_OVERWRITE ? relay_ring_floor(ring) : 0;
	default:
		return 0;
	}
}

unsigned relay_ring_hash(uint64_t key, unsigned n)
{
	/* Mix the bits by the finaliser of MurmurHash3, then scale, which needs no division. */
	key = (key ^ key >> 33) * 0xff51afd7ed558ccdull;
	key = (key ^ key >> 33) * 0xc4ceb9fe1a85ec53ull;
	key ^= key >> 33;
	return (unsigned)((key >> 32) * n >> 32);
}
