/* SPDX-License-Identifier: MIT */
/* Checking a view of a ring: relay_ring_check() of <relayfs/check_store.h>. As buffer/check.c. */
#define _GNU_SOURCE
#include "base/faults.h"
#include "ring/claims.h"
#include "ring/consumer.h"
#include "ring/state.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>

/* The flags that a ring can have. */
enum { KNOWN_FLAGS = RELAY_STOPPED | RELAY_ARMED };

struct check {
	struct relay_ring *ring;
	struct relay_faults *faults;
	uint64_t claims_at, state_at; /* offsets in the file */
	struct relay_ring_stats stats;
	uint64_t produced; /* the producer position, loaded before all claims */
};

#define CONSUMER(field) offsetof(struct relay_ring_consumer, field)
#define PRODUCER(field) (RELAY_PAGE_BYTES + offsetof(struct relay_ring_producer, field))
#define STATE(field) (check->state_at + offsetof(struct relay_ring_state, field))

static void note(const struct check *check)
{
	struct relay_damage *damage = &check->ring->damage;
	const uint64_t counts =
	    CONSUMER(counts) + (check->ring->consumer->current & 1) * sizeof(struct relay_ring_counts);
	const struct relay_fault_place places[] = {
	    {"relay_ring_counts.records", counts + offsetof(struct relay_ring_counts, records), 0},
	    {"relay_ring_counts.bytes", counts + offsetof(struct relay_ring_counts, bytes), 0},
	    {"relay_ring_counts.discarded", counts + offsetof(struct relay_ring_counts, discarded), 0},
	    {"relay_ring_counts.missed", counts + offsetof(struct relay_ring_counts, missed), 0},
	    {"relay_ring_counts.foreign", counts + offsetof(struct relay_ring_counts, foreign), 0},
	    {"the consumer position", counts, 0},
	    {"the producer position", PRODUCER(position), 0},
	    {"the position up to which is reserved", PRODUCER(tail), 0},
	    {"the count of records reserved", PRODUCER(tail) + sizeof(uint64_t), 0},
	    {"the count of torn records", check->claims_at, 0},
	    {"the count of records before the oldest one", PRODUCER(overwritten), 0},
	    {"relay_ring_geometry.magic", STATE(geometry.magic), 0},
	    {"relay_ring_state.lost_full", STATE(lost_full), 0},
	    {"relay_ring_state.lost_disabled", STATE(lost_disabled), 0},
	    {"relay_ring_state.lost_too_large", STATE(lost_too_large), 0},
	    {NULL, PRODUCER(position), 0},
	};
	relay_fault_note(check->faults, damage, places);
}

static void check_words(const struct check *check)
{
	const struct relay_ring *ring = check->ring;
	const struct relay_ring_consumer *consumer = ring->consumer;
	const struct relay_ring_producer *producer = ring->producer;
	uint32_t flags = __atomic_load_n(&producer->flags, __ATOMIC_ACQUIRE);
	uint32_t n_used = __atomic_load_n(&producer->n_claims_used, __ATOMIC_RELAXED);
	/* Relaxed: nothing that the lock protects is loaded. */
	uint64_t lock = __atomic_load_n(&consumer->lock, __ATOMIC_RELAXED);
	relay_fault_bits(check->faults, PRODUCER(flags), flags, "relay_ring_producer.flags", KNOWN_FLAGS);
	relay_fault_above(check->faults, PRODUCER(n_claims_used), n_used, "relay_ring_producer.n_claims_used",
	                  RELAY_N_CLAIMS);
	relay_fault_dead(check->faults, CONSUMER(lock), lock, "relay_ring_consumer.lock", "the next consumer takes it");
	/* The count is loaded before the position, which is stored after it; so the position is not behind. */
	uint32_t current = __atomic_load_n(&consumer->current, __ATOMIC_ACQUIRE);
	uint64_t counted = consumer->counts[current & 1].position;
	uint64_t position = relay_ring_consumed(ring);
	bool is_locked = lock || __atomic_load_n(&consumer->lock, __ATOMIC_ACQUIRE);
	if (!is_locked && relay_ring_is_behind(position, counted))
		relay_fault_value(check->faults, CONSUMER(position), position, "relay_ring_consumer.position",
		                  "at least %" PRIu64 ", as relay_ring_counts.position", counted);
}

/* Scheme rseq: the producer position is that of one of the two tails. */
static void check_tails(const struct check *check)
{
	const struct relay_ring_producer *producer = check->ring->producer;
	for (int i = 0; check->ring->scheme == RELAY_RSEQ && i < RELAY_LATCH_TRIES; i++) {
		uint64_t position = relay_ring_produced(check->ring);
		uint64_t first = __atomic_load_n(&producer->tail[0].first, __ATOMIC_ACQUIRE);
		uint64_t second = __atomic_load_n(&producer->tail[1].first, __ATOMIC_ACQUIRE);
		if (first == position || second == position)
			return;
		if (relay_ring_produced(check->ring) != position)
			continue;
		relay_fault_value(check->faults, PRODUCER(tail), first, "relay_ring_producer.tail",
		                  "one of the two has the producer position, %" PRIu64, position);
		return;
	}
}

/* Mode overwrite: the oldest record is not behind the newest. */
static void check_oldest(const struct check *check)
{
	const struct relay_ring *ring = check->ring;
	uint64_t oldest = relay_ring_floor(ring), produced = relay_ring_reserved(ring);
	uint64_t at = ring->scheme == RELAY_RSEQ ? STATE(oldest) : PRODUCER(overwritten);
	if (ring->mode == RELAY_OVERWRITE &&
	    (oldest % RELAY_RING_HEADER_BYTES || relay_ring_is_behind(produced, oldest)))
		relay_fault_value(check->faults, at, oldest, "the position of the oldest record",
		                  "a multiple of %d, at most %" PRIu64, RELAY_RING_HEADER_BYTES, produced);
}

/* --- claims --- */

static void check_claim(const struct check *check, uint32_t i)
{
	const struct relay_ring *ring = check->ring;
	const struct relay_ring_claim *claim = &ring->claims[i];
	const uint64_t at = check->claims_at + i * sizeof(*claim);
	char name[RELAY_FAULT_NAME_BYTES];
	uint64_t word = relay_ring_claim_word(claim), state = word & RELAY_CLAIM_STATE;
	/* Relaxed: they belong to the word if it is the same afterwards. */
	uint64_t length = __atomic_load_n(&claim->length, __ATOMIC_RELAXED);
	uint64_t thread = __atomic_load_n(&claim->owner.thread, __ATOMIC_RELAXED);
	uint64_t in_use = __atomic_load_n(&claim->owner.in_use, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	if (__atomic_load_n(&claim->word.first, __ATOMIC_RELAXED) != word)
		return;
	uint32_t n_used = __atomic_load_n(&ring->producer->n_claims_used, __ATOMIC_RELAXED);
	uint64_t pos = word & RELAY_POSITION_MASK, reserved = relay_ring_reserved(ring);
	snprintf(name, sizeof(name), "relay_ring_claim[%u].owner.in_use", i);
	if (in_use > 1)
		relay_fault_value(check->faults, at + offsetof(struct relay_ring_claim, owner.in_use), in_use, name,
		                  "0 or 1");
	snprintf(name, sizeof(name), "relay_ring_claim[%u].word", i);
	if (word && i >= n_used)
		relay_fault_value(check->faults, at, word, name,
		                  "0, as only claims below n_claims_used, %u, were ever taken", n_used);
	else if (word && (!state || pos % RELAY_RING_HEADER_BYTES))
		relay_fault_value(check->faults, at, word, name,
		                  "0, or a state in its upper 2 bits and a position, a multiple of %d",
		                  RELAY_RING_HEADER_BYTES);
	if (!word || (state != RELAY_CLAIM_TAKEN && state != RELAY_RING_REAPED))
		return;
	if (pos >= reserved)
		relay_fault_value(check->faults, at, word, name, "a position, in its lower 62 bits, before %" PRIu64,
		                  reserved);
	snprintf(name, sizeof(name), "relay_ring_claim[%u].length", i);
	relay_fault_above(check->faults, at + offsetof(struct relay_ring_claim, length), length, name,
	                  ring->largest + ring->time_bytes);
	snprintf(name, sizeof(name), "relay_ring_claim[%u].owner.thread", i);
	/* A thread that died after its commit has left a claim that holds up nobody. */
	bool is_busy = __atomic_load_n(relay_ring_length_at(ring, pos & ~7ull), __ATOMIC_ACQUIRE) & RELAY_RING_BUSY;
	if (is_busy && !relay_ring_is_behind(pos, relay_ring_floor(ring)))
		relay_fault_dead(check->faults, at + offsetof(struct relay_ring_claim, owner.thread), thread, name,
		                 "it has not committed what it reserved there; the next consumer that comes there "
		                 "counts it as torn");
}

/* --- records --- */

/* True if a claim has the reservation at pos. */
static bool is_claimed(const struct relay_ring *ring, uint64_t pos)
{
	for (uint32_t i = 0; i < relay_claim_table_n_used(&ring->claim_table); i++) {
		uint64_t word = relay_ring_claim_word(&ring->claims[i]);
		if (word && (word & RELAY_POSITION_MASK) == (pos & RELAY_POSITION_MASK))
			return true;
	}
	return false;
}

/* Check the header at pos. Returns the bytes of the record, 0 if it was overwritten or is wrong. */
static uint64_t check_header(const struct check *check, uint64_t pos)
{
	const struct relay_ring *ring = check->ring;
	const uint32_t *at = relay_ring_length_at(ring, pos);
	const uint64_t offset = RELAY_RING_DATA_AT + (pos & ring->mask);
	char name[RELAY_FAULT_NAME_BYTES];
	/* Pairs with end_record() in ring/output.c. */
	uint32_t length = __atomic_load_n(at, __ATOMIC_ACQUIRE), page = __atomic_load_n(at + 1, __ATOMIC_RELAXED);
	uint32_t bytes = length & ~(RELAY_RING_BUSY | RELAY_RING_DISCARD);
	uint32_t expected = (uint32_t)(relay_ring_header(ring, pos, 0) >> 32);
	/* A claim is freed after the header was stored without BUSY, so the header is loaded again after the claims. */
	bool is_lost = length & RELAY_RING_BUSY && !is_claimed(ring, pos) &&
	               __atomic_load_n(at, __ATOMIC_ACQUIRE) & RELAY_RING_BUSY;
	/* Keeps the loads above before that of the floor: before it, memory belongs to producers. */
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	if (relay_ring_is_behind(pos, relay_ring_floor(ring)))
		return 0;
	bool fits = relay_ring_fits(ring, pos, length, check->produced);
	if (fits && !is_lost && page == expected)
		return relay_ring_total(bytes);
	snprintf(name, sizeof(name), "the length at position %" PRIu64, pos);
	if (!fits) {
		relay_fault_value(check->faults, offset, bytes, name,
		                  "at most %" PRIu64 ", up to the producer position",
		                  check->produced - pos - RELAY_RING_HEADER_BYTES);
		return 0;
	}
	if (is_lost)
		relay_fault_value(check->faults, offset, length, name,
		                  "without the flag BUSY, %u, as nobody has reserved it", RELAY_RING_BUSY);
	snprintf(name, sizeof(name), "the page at position %" PRIu64, pos);
	if (page != expected)
		relay_fault_value(check->faults, offset + sizeof(length), page, name, "%u, by its position", expected);
	return relay_ring_total(bytes);
}

/* Check all records from the consumer, or from the oldest one, to the producer position as it was. Returns their number,
 * UINT64_MAX if not all could be seen. */
static uint64_t check_records(const struct check *check)
{
	uint64_t pos = check->stats.consumer_position, floor = relay_ring_floor(check->ring), n = 0;
	if (relay_ring_is_behind(pos, floor))
		pos = floor;
	while (relay_ring_is_behind(pos, check->produced)) {
		uint64_t total = check_header(check, pos);
		if (total) {
			pos += total;
			n++;
			continue;
		}
		floor = relay_ring_floor(check->ring);
		if (!relay_ring_is_behind(pos, floor))
			return UINT64_MAX;
		pos = floor;
	}
	return n;
}

/* Compare the number of records found with what was reserved, if nothing has moved. */
static void check_account(const struct check *check, uint64_t n)
{
	struct relay_ring_stats now;
	const struct relay_ring_stats *was = &check->stats;
	struct relay_ring *ring = check->ring;
	bool counts = ring->mode != RELAY_OVERWRITE && !was->foreign_bytes && n != UINT64_MAX;
	if (!counts || relay_ring_stats(ring, &now) || now.records != was->records ||
	    now.producer_position != was->producer_position || now.consumer_position != was->consumer_position ||
	    relay_ring_reserved(ring) != check->produced)
		return;
	uint64_t known = was->read_records + was->skipped_records + n;
	bool other = ring->scheme == RELAY_RSEQ && ring->producer->tail[0].first != check->produced;
	if (known != was->records)
		relay_fault_value(check->faults, PRODUCER(tail) + other * sizeof(struct relay_u128) + sizeof(uint64_t),
		                  was->records, "the count of records reserved",
		                  "%" PRIu64 ": %" PRIu64 " consumed, %" PRIu64 " skipped and %" PRIu64 " in the ring",
		                  known, was->read_records, was->skipped_records, n);
}

int relay_ring_check(struct relay_ring *ring, struct relay_faults *faults)
{
	struct check of = {.ring = ring,
	                   .faults = faults,
	                   .claims_at = (uint64_t)((unsigned char *)ring->claims - ring->mapping.base),
	                   .state_at = ring->mapping.bytes - RELAY_PAGE_BYTES};
	struct check *check = &of;
	check_oldest(check);
	int err = relay_ring_stats(ring, &check->stats);
	check_words(check);
	if (err) {
		note(check);
		return 0;
	}
	/* relay_ring_claims_help() stores into the view, whose claims stay as they are from then on. So only records before
	 * this position are checked. */
	check->produced = check->stats.producer_position;
	relay_ring_claims_help(ring);
	check_tails(check);
	for (uint32_t i = 0; i < RELAY_N_CLAIMS; i++)
		check_claim(check, i);
	check_account(check, check_records(check));
	return 0;
}
