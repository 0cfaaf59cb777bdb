/* SPDX-License-Identifier: MIT */
/* Where the fields of a relay buffer, a ring or a file of plain words are, and the attacks that need to know. */
#include "hostile.h"
#include "lives.h"

#include <relayfs/ring_layout.h>
#include <stdlib.h>
#include <string.h>

static void add(struct target *target, uint64_t at, uint32_t bytes, bool is_owner)
{
	if (target->n_fields < MAX_FIELDS && at + bytes <= target->bytes)
		target->field[target->n_fields++] = (struct field){at, bytes, is_owner};
}

static void add_words(struct target *target, uint64_t at, uint64_t bytes)
{
	uint64_t end = at + bytes;
	for (; at < end; at += sizeof(uint64_t))
		add(target, at, sizeof(uint64_t), false);
}

static void add_area(struct target *target, uint64_t at, uint64_t bytes)
{
	struct area *area = &target->area[target->n_areas];
	if (target->n_areas == MAX_AREAS || at + bytes > target->bytes)
		return;
	area->image = malloc(bytes);
	if (!area->image)
		return;
	area->at = at;
	area->bytes = bytes;
	memcpy(area->image, target->memory + at, bytes);
	target->n_areas++;
}

/* Some words matter more than others: they are in the table several times, so that they are hit as often as the claims
 * and the ledgers, of which there are hundreds. */
#define OFTEN 24

#define ADD(base, type, member, owner)          \
	for (unsigned i_ = 0; i_ < OFTEN; i_++) \
	add(target, (base) + offsetof(struct type, member), sizeof(((struct type *)0)->member), owner)

static void learn_relay_control(struct target *target)
{
	uint64_t at = target->control_at;
	ADD(at, relay_control, flags, false);
	ADD(at, relay_control, n_claims_used, false);
	ADD(at, relay_control, switch_time_ns, false);
	ADD(at, relay_control, consumed, false);
	ADD(at, relay_control, current, false);
	ADD(at, relay_control, resets, false);
	ADD(at, relay_control, reader_lock, true);
	ADD(at, relay_control, switch_lock, true);
	ADD(at, relay_control, write_lock, true);
	ADD(at, relay_control, maker, true);
	ADD(at, relay_control, asked, false);
	ADD(at, relay_control, wanted, false);
	ADD(at, relay_control, ending, false);
	ADD(at, relay_control, starting, false);
	ADD(at, relay_control, wake_seq, false);
	ADD(at, relay_control, n_holes, false);
	for (unsigned i = 0; i < OFTEN; i++) {
		add_words(target, at + offsetof(struct relay_control, head), sizeof(struct relay_latch));
		add_words(target, at + offsetof(struct relay_control, lost_full), 3 * sizeof(struct relay_latch));
		add_words(target, at + offsetof(struct relay_control, consumer), 2 * sizeof(struct relay_consumer));
		add_words(target, at + offsetof(struct relay_control, mtime), sizeof(struct relay_latch));
	}
	add_words(target, at, sizeof(struct relay_control));
}

static unsigned bits_for(uint64_t highest)
{
	return highest ? 64 - (unsigned)__builtin_clzll(highest) : 0;
}

static uint64_t target_head(const struct target *target)
{
	const struct relay_control *control = (const struct relay_control *)(target->memory + target->control_at);
	return control->head.first & RELAY_POSITION_MASK;
}

static bool learn_relay(struct target *target)
{
	target->control_at = target->bytes - RELAY_PAGE_BYTES;
	struct relay_geometry geometry;
	memcpy(&geometry, target->memory + target->control_at, sizeof(geometry));
	if (geometry.magic != RELAY_MAGIC || geometry.file_bytes != target->bytes)
		return false;
	target->subbuf_size = geometry.subbuf_size;
	target->n_subbufs = geometry.n_subbufs;
	target->offset_bits = bits_for(geometry.subbuf_size);
	target->offset_mask = (1ull << target->offset_bits) - 1;
	target->index_mask = (1ull << bits_for(geometry.n_subbufs - 1)) - 1;
	uint64_t data = geometry.subbuf_size * geometry.n_subbufs;
	target->ledger_at = (data + RELAY_PAGE_BYTES - 1) / RELAY_PAGE_BYTES * RELAY_PAGE_BYTES;
	target->claims_at = target->ledger_at + 2 * geometry.n_subbufs * sizeof(struct relay_subbuf);
	for (uint64_t i = 0; i < 2 * geometry.n_subbufs && i < 64; i++)
		add_words(target, target->ledger_at + i * sizeof(struct relay_subbuf), sizeof(struct relay_subbuf));
	for (uint64_t i = 0; i < geometry.n_claims; i++) {
		uint64_t at = target->claims_at + i * sizeof(struct relay_claim);
		add_words(target, at, sizeof(struct relay_claim));
		add(target, at + offsetof(struct relay_claim, owner.thread), sizeof(uint64_t), true);
		add(target, at + offsetof(struct relay_claim, owner.reaper), sizeof(uint64_t), true);
	}
	learn_relay_control(target);
	add_area(target, target->ledger_at, target->bytes - target->ledger_at);
	return true;
}

static void learn_ring_state(struct target *target, uint64_t producer)
{
	ADD(0, relay_ring_consumer, position, false);
	ADD(0, relay_ring_consumer, lock, true);
	ADD(0, relay_ring_consumer, current, false);
	ADD(producer, relay_ring_producer, last, false);
	ADD(producer, relay_ring_producer, flags, false);
	ADD(producer, relay_ring_producer, n_claims_used, false);
	ADD(target->state_at, relay_ring_state, wake_seq, false);
	for (unsigned i = 0; i < OFTEN; i++) {
		add_words(target, offsetof(struct relay_ring_consumer, counts), 2 * sizeof(struct relay_ring_counts));
		add_words(target, producer, offsetof(struct relay_ring_producer, last));
		add_words(target, target->state_at + offsetof(struct relay_ring_state, oldest),
		          sizeof(struct relay_latch));
		add_words(target, target->state_at + offsetof(struct relay_ring_state, lost_full),
		          3 * sizeof(struct relay_latch));
		add_words(target, target->state_at + offsetof(struct relay_ring_state, mtime),
		          sizeof(struct relay_latch));
	}
	add_words(target, target->state_at, sizeof(struct relay_ring_state));
}

static bool learn_ring(struct target *target)
{
	target->state_at = target->bytes - RELAY_PAGE_BYTES;
	struct relay_ring_geometry geometry;
	memcpy(&geometry, target->memory + target->state_at, sizeof(geometry));
	if (geometry.magic != RELAY_RING_MAGIC || geometry.file_bytes != target->bytes)
		return false;
	target->ring_size = geometry.size;
	uint64_t behind = RELAY_RING_DATA_AT + 2 * geometry.size;
	learn_ring_state(target, RELAY_PAGE_BYTES);
	/* The first headers, the records that wait for their turn, and the claims. */
	for (uint64_t at = 0; at < 2048; at += RELAY_RING_HEADER_BYTES) {
		add(target, RELAY_RING_DATA_AT + at, sizeof(uint32_t), false);
		add(target, RELAY_RING_DATA_AT + at + sizeof(uint32_t), sizeof(uint32_t), false);
	}
	add_words(target, behind, target->state_at - behind < 16384 ? target->state_at - behind : 16384);
	uint64_t claims = behind + RELAY_RING_N_READY * sizeof(uint64_t) + RELAY_RING_CLAIMS_GAP;
	for (unsigned i = 0; i < RELAY_N_CLAIMS; i++) {
		uint64_t at = claims + i * sizeof(struct relay_ring_claim);
		add_words(target, at, sizeof(struct relay_ring_claim));
		add(target, at + offsetof(struct relay_ring_claim, owner.thread), sizeof(uint64_t), true);
		add(target, at + offsetof(struct relay_ring_claim, owner.reaper), sizeof(uint64_t), true);
	}
	add_area(target, 0, RELAY_RING_DATA_AT + (geometry.size < 65536 ? geometry.size : 65536));
	add_area(target, behind, target->bytes - behind);
	return true;
}

static bool learn_words(struct target *target)
{
	add_words(target, 0, target->bytes);
	add_area(target, 0, target->bytes < 1 << 20 ? target->bytes : 1 << 20);
	return true;
}

bool target_learn(struct target *target)
{
	if (target->bytes < RELAY_PAGE_BYTES)
		return false;
	if (target->kind == KIND_RELAY)
		return learn_relay(target);
	return target->kind == KIND_RING ? learn_ring(target) : learn_words(target);
}

/* --- moves --- */

/* As it was when the attack began: then a single wrong word is met by readers that believe all others. */
uint64_t target_restore(struct target *target)
{
	uint64_t n = 0;
	for (unsigned i = 0; i < target->n_areas; i++) {
		memcpy(target->memory + target->area[i].at, target->area[i].image, target->area[i].bytes);
		n += target->area[i].bytes / sizeof(uint64_t);
	}
	return n;
}

/* The sub-buffer in which producers are said to be, holding nothing but discarded records: as many as a list may have,
 * or a list that leads back into itself. */
uint64_t target_list_holes(struct target *target)
{
	if (target->kind != KIND_RELAY)
		return 0;
	uint64_t n = target->subbuf_size / sizeof(struct relay_hole);
	if (n > RELAY_N_HOLES)
		n = RELAY_N_HOLES;
	if (n < 2)
		return 0;
	struct relay_control *control = (struct relay_control *)(target->memory + target->control_at);
	struct relay_subbuf *ledger = (struct relay_subbuf *)(target->memory + target->ledger_at);
	uint64_t head = target_head(target), begin = head & ~target->offset_mask;
	uint64_t index = (head & RELAY_POSITION_MASK) >> target->offset_bits & target->index_mask;
	if (index >= target->n_subbufs)
		return 0;
	struct relay_hole *hole = (struct relay_hole *)(target->memory + index * target->subbuf_size);
	for (uint64_t i = 0; i < n; i++)
		hole[i] = (struct relay_hole){i ? (uint32_t)((i - 1) * sizeof(*hole)) + 1 : 0, sizeof(*hole),
		                              (uint32_t)i, (uint32_t)i + 1};
	if (random_below(2))
		hole[random_below(n)].next = (uint32_t)(random_below(n) * sizeof(*hole)) + 1;
	for (unsigned lap = 0; lap < 2; lap++)
		ledger[index + lap * target->n_subbufs].holes = RELAY_HOLES | begin | (n - 1) * sizeof(*hole);
	for (unsigned copy = 0; copy < 2; copy++) {
		control->consumer[copy].position = begin;
		control->consumer[copy].records = control->head.second[0] & RELAY_RECORDS_MASK;
	}
	control->consumed = begin;
	control->n_holes += n;
	control->head.second[0] = (control->head.second[0] & RELAY_RECORDS_MASK) + n;
	control->head.first = begin | n * sizeof(*hole);
	return 2 * n + 9;
}

/* Nothing but records that are to be skipped, up to where producers are said to be. */
uint64_t target_fill_with_discards(struct target *target)
{
	if (target->kind != KIND_RING)
		return 0;
	uint64_t n = target->ring_size / RELAY_RING_HEADER_BYTES, i;
	uint64_t *header = (uint64_t *)(target->memory + RELAY_RING_DATA_AT);
	uint32_t bits = random_below(4) ? RELAY_RING_DISCARD : RELAY_RING_DISCARD | RELAY_RING_BUSY;
	for (i = 0; i < n; i++)
		header[i] = bits | (uint64_t)(RELAY_RING_FIRST_PAGE + i * RELAY_RING_HEADER_BYTES / RELAY_PAGE_BYTES)
		                       << 32;
	struct relay_ring_consumer *consumer = (struct relay_ring_consumer *)target->memory;
	struct relay_ring_producer *producer = (struct relay_ring_producer *)(target->memory + RELAY_PAGE_BYTES);
	uint64_t start = consumer->position & ~(uint64_t)(RELAY_RING_HEADER_BYTES - 1);
	uint64_t end = start + target->ring_size - RELAY_RING_HEADER_BYTES;
	producer->position = (struct relay_u128){end, end / RELAY_RING_HEADER_BYTES};
	producer->tail[0] = producer->tail[1] = (struct relay_u128){end, end / RELAY_RING_HEADER_BYTES};
	return n + 6;
}
