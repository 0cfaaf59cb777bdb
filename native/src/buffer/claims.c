/* SPDX-License-Identifier: MIT */
/*
 * Claims. A record that is written in more than one step has a claim, by which other threads can tell what
 * to do if its writer dies.
 *
 *     claim.owner.in_use = 1              so that a signal handler takes another one
 *     claim.word = PENDING | pos          announce the reservation
 *     head: {pos, r | ?} -> {pos+length, r+1 | this claim}          make it, by one compare-and-swap or section
 *     copy the record
 *     claim.word = FREE, in_use = 0       commit
 *
 * Readers stop before the first claim whose reservation was made and is not committed. Every thread can find out
 * whether the reservation of a PENDING claim was made: head.second names the claim that changed head last, and each
 * thread that changes head first marks that claim as TAKEN, which is called helping (relay_claims_help()). So a
 * reservation was made if its claim is TAKEN, or if head names the PENDING claim and its end is head's position.
 *
 *     FREE -> PENDING -> (TAKEN) -> FREE         committed
 *             PENDING -> FREE                    withdrawn, or the owner died before the reservation was made
 *                        TAKEN -> HOLE -> FREE   discarded and too short for buffer/holes.c; or the owner died:
 *                                                a reader passes the hole, or a lap overwrites it
 *                        TAKEN -> FREE           the owner of a switch died; the switch is complete
 *
 * Except in scheme rseq, a switch of sub-buffers is a claim of length RELAY_CLAIM_SWITCH. To help it means to store the
 * entries of both sub-buffers. Each word is stored by a compare-and-swap from its value before the switch, so that a
 * helper that is delayed for laps changes nothing.
 *
 * The last claims of the table (base/claim_table.h) are for switches alone. The claim of a dead writer's reservation
 * becomes a hole and stays in use until a reader has passed the hole. A reader of packets passes it only when its
 * sub-buffer is finished, and to finish a sub-buffer takes a claim, too (not in rseq). If holes could take all claims,
 * no thread could finish that sub-buffer. A switch leaves no hole, so its claim is free as soon as somebody reaps it.
 */
#define _GNU_SOURCE
#include "buffer/claims.h"

#include "buffer/head.h"

/* FIND_ROUNDS: how often to search for a claim while all are in use; VIEW_TRIES: see view() */
enum { FIND_ROUNDS = 128, NONBLOCKING_ROUNDS = 16, VIEW_TRIES = 16 };

static uint64_t word_of(const struct relay_claim *claim)
{
	/* Pairs with relay_claim_state(), relay_inline_free(), relay_claim_release() in buffer/claims.h and
	 * change_word(): what was stored before the word is seen. */
	return __atomic_load_n(&claim->word, __ATOMIC_ACQUIRE);
}

static bool change_word(struct relay_claim *claim, uint64_t from, uint64_t to)
{
	/* Pairs with word_of(): what was stored before the word. */
	return __atomic_compare_exchange_n(&claim->word, &from, to, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

static int find_rounds(const struct rchan_buf *buf)
{
	return buf->never_waits ? 1 : buf->may_block ? FIND_ROUNDS : NONBLOCKING_ROUNDS;
}

static struct relay_claim *take_claim(struct rchan_buf *buf, bool for_switch)
{
	uint64_t kept = relay_inline_kept(&buf->claim_table.fast);
	/* It cannot be taken if it is reserved, or this is a signal handler that interrupted its use. */
	if (__builtin_expect(kept < RELAY_N_CLAIMS && relay_inline_take(&buf->claims[kept]), 1))
		return &buf->claims[kept];
	uint32_t i = relay_claim_table_find(&buf->claim_table, find_rounds(buf), for_switch);
	return i == UINT32_MAX ? NULL : &buf->claims[i];
}

struct relay_claim *relay_claim_take(struct rchan_buf *buf)
{
	return take_claim(buf, false);
}

struct relay_claim *relay_claim_take_for_switch(struct rchan_buf *buf)
{
	return take_claim(buf, true);
}

static void swap_word(uint64_t *at, uint64_t from, uint64_t to)
{
	/* Pairs with word_of(): a thread that sees the word which change_word() or relay_claim_release()
	 * stores next sees the new value. */
	__atomic_compare_exchange_n(at, &from, to, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

/* Store the entries of both sub-buffers, for the switch from the position in `word` to {next, second}. */
static void help_switch(struct rchan_buf *buf, const struct relay_claim *claim, uint64_t word, uint64_t next,
                        uint64_t second)
{
	uint64_t pos = word & RELAY_POSITION_MASK;
	struct relay_subbuf *left = relay_pos_entry(buf, pos);
	struct relay_subbuf *entered = relay_pos_entry(buf, next);
	/* Relaxed: ordered by the fence below. */
	uint64_t records = __atomic_load_n(&claim->records, __ATOMIC_RELAXED);
	uint64_t bytes = __atomic_load_n(&claim->bytes, __ATOMIC_RELAXED);
	uint64_t old_end = __atomic_load_n(&left->end, __ATOMIC_RELAXED);
	uint64_t old_records = __atomic_load_n(&entered->start_records, __ATOMIC_RELAXED);
	uint64_t old_bytes = __atomic_load_n(&entered->start_bytes, __ATOMIC_RELAXED);
	/* The acquire keeps the loads above before the checks below. If head is unchanged, the loaded words are
	 * those from before the switch, or already right; none of them ever gets an old value again. Pairs with the
	 * fence in relay_claim_state(). */
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	if (__atomic_load_n(&buf->control->head.first, __ATOMIC_RELAXED) != next ||
	    __atomic_load_n(&buf->control->head.second[0], __ATOMIC_RELAXED) != second)
		return;
	/* The owner may have used its claim for its next record already, while head still names the claim. */
	if (__atomic_load_n(&claim->word, __ATOMIC_RELAXED) != word)
		return;
	swap_word(&left->end, old_end, pos);
	swap_word(&entered->start_records, old_records, records);
	swap_word(&entered->start_bytes, old_bytes, bytes);
}

void relay_claims_complete(struct rchan_buf *buf, struct relay_claim *claim, uint64_t word, uint64_t pos,
                           uint64_t second)
{
	uint64_t from = word & RELAY_POSITION_MASK;
	if (!relay_pos_valid(buf, from))
		return;
	/* Relaxed: if the length belongs to another word, the word has changed, and change_word() changes nothing. */
	uint64_t length = __atomic_load_n(&claim->length, __ATOMIC_RELAXED);
	if (length == RELAY_CLAIM_SWITCH) {
		if (relay_pos_next(buf, from) != pos)
			return; /* announced, but not made */
		help_switch(buf, claim, word, pos, second);
	} else if (from + length != pos) {
		return;
	}
	/* If the claim was used for another record meanwhile, its word has another position,
	 * and this changes nothing. */
	change_word(claim, word, RELAY_CLAIM_TAKEN | from);
}

static void make_hole(struct rchan_buf *buf, struct relay_claim *claim, uint64_t word)
{
	/* Relaxed: if it belongs to another word, change_word() changes nothing. */
	uint64_t n_records = (__atomic_load_n(&claim->bytes, __ATOMIC_RELAXED) >> RELAY_CLAIM_MORE_SHIFT) + 1;
	if (change_word(claim, word, RELAY_CLAIM_HOLE | (word & RELAY_POSITION_MASK)))
		relay_count_hole(buf, n_records);
}

static struct rchan_buf *buf_of(struct relay_claim_table *table)
{
	return (struct rchan_buf *)((char *)table - offsetof(struct rchan_buf, claim_table));
}

/* See relay_claim_table.give_up. A word contains a position, and no position occurs twice between two
 * resets, so the compare-and-swap of a delayed thread cannot change the claim of a later owner. */
static bool give_up(struct relay_claim_table *table, uint32_t i, uint64_t dead)
{
	struct rchan_buf *buf = buf_of(table);
	struct relay_claim *claim = &buf->claims[i];
	uint64_t pos, second;
	if (relay_head(buf, &pos, &second))
		return false;
	relay_claims_help(buf, pos, second);
	uint64_t word = word_of(claim);
	/* Relaxed: if the length belongs to another word, change_word() changes nothing. */
	bool is_record = __atomic_load_n(&claim->length, __ATOMIC_RELAXED) != RELAY_CLAIM_SWITCH;
	if ((word & RELAY_CLAIM_STATE) != RELAY_CLAIM_TAKEN)
		return false;
	/* Another thread may have reaped the claim, and a living one taken it. Pairs with
	 * try_own() in base/claim_table.c. */
	if (__atomic_load_n(&claim->owner.thread, __ATOMIC_ACQUIRE) != dead)
		return true;
	if (is_record)
		make_hole(buf, claim, word);
	else
		change_word(claim, word, RELAY_CLAIM_FREE);
	return true;
}

static bool end_buf_claim(struct relay_claim_table *table, uint32_t i)
{
	struct rchan_buf *buf = buf_of(table);
	uint64_t pos, second, word = word_of(&buf->claims[i]);
	if (relay_head(buf, &pos, &second) || (word & RELAY_CLAIM_STATE) == RELAY_CLAIM_TAKEN)
		return false;
	/* A PENDING reservation was not made, because give_up() has called relay_claims_help(), which
	 * would have marked it as TAKEN. */
	if ((word & RELAY_CLAIM_STATE) == RELAY_CLAIM_PENDING)
		change_word(&buf->claims[i], word, RELAY_CLAIM_FREE);
	return true;
}

bool relay_claim_reap(struct rchan_buf *buf, struct relay_claim *claim)
{
	return relay_claim_table_reap(&buf->claim_table, (uint32_t)(claim - buf->claims));
}

int relay_buf_resolve(struct rchan_buf *buf, uint64_t token)
{
	return relay_claim_table_resolve(&buf->claim_table, token);
}

void relay_buf_set_token(struct rchan_buf *buf, uint64_t token)
{
	relay_claim_table_renew(&buf->claim_table, token);
}

void relay_claims_init(struct rchan_buf *buf)
{
	buf->claim_table = (struct relay_claim_table){
	    .claims = (unsigned char *)buf->claims,
	    .n_used = &buf->control->n_claims_used,
	    .n_reservations = RELAY_N_RESERVATIONS,
	    .give_up = give_up,
	    .end = end_buf_claim,
	    .heeds_quiet = true,
	};
	relay_claim_table_renew(&buf->claim_table, 0);
}

/* Help the last reservation, whose claim may still be PENDING. */
static void help_last(struct rchan_buf *buf)
{
	uint64_t pos, second;
	if (relay_head(buf, &pos, &second) == 0)
		relay_claims_help(buf, pos, second);
}

/* True if claim number i is that of a reservation at address `to` which was made and is not committed. {head, second}
 * was loaded before: if it names another claim, this one is TAKEN by now. */
static bool is_reserved_at(const struct rchan_buf *buf, uint64_t i, const void *to, uint64_t head, uint64_t second)
{
	const struct relay_claim *claim = &buf->claims[i];
	uint64_t word = word_of(claim), state = word & RELAY_CLAIM_STATE, pos = word & RELAY_POSITION_MASK;
	/* Relaxed: the length does not change before the commit. */
	uint64_t length = __atomic_load_n(&claim->length, __ATOMIC_RELAXED);
	bool is_last = state == RELAY_CLAIM_PENDING && second >> RELAY_OWNER_SHIFT == i + 1 && pos + length == head;
	return (is_last || state == RELAY_CLAIM_TAKEN) && length != RELAY_CLAIM_SWITCH && relay_pos_valid(buf, pos) &&
	       relay_pos_data(buf, pos) == to;
}

struct relay_claim *relay_claim_at(struct rchan_buf *buf, const void *to)
{
	uint64_t head, second, kept = relay_inline_kept(&buf->claim_table.fast);
	if (relay_head(buf, &head, &second))
		head = second = 0;
	if (kept < RELAY_N_CLAIMS && is_reserved_at(buf, kept, to, head, second))
		return &buf->claims[kept];
	for (uint32_t i = 0; i < relay_claims_n_used(buf); i++)
		if (is_reserved_at(buf, i, to, head, second))
			return &buf->claims[i];
	return NULL;
}

void relay_claim_leave_hole(struct rchan_buf *buf, struct relay_claim *claim, bool discarded)
{
	/* Relaxed: published by the change of the word. */
	__atomic_store_n(&claim->bytes, discarded ? RELAY_CLAIM_DISCARDED : 0, __ATOMIC_RELAXED);
	help_last(buf);
	make_hole(buf, claim, word_of(claim));
	relay_claim_give_back(buf, claim);
}

uint32_t relay_claims_n_holes(const struct rchan_buf *buf, uint64_t from)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < relay_claims_n_used(buf); i++) {
		uint64_t word = word_of(&buf->claims[i]);
		n += (word & RELAY_CLAIM_STATE) == RELAY_CLAIM_HOLE && (word & RELAY_POSITION_MASK) >= from;
	}
	return n;
}

/* A consistent copy of a claim; after VIEW_TRIES, the last copy, consistent or not (only a hostile thread
 * changes a claim so often). */
static struct relay_claim_view view(struct relay_claim *claim)
{
	struct relay_claim_view seen;
	for (int i = 0; i < VIEW_TRIES; i++) {
		/* Pairs with relay_claim_release(): if the claim is free, its record is complete. */
		seen.word = word_of(claim);
		seen.length = __atomic_load_n(&claim->length, __ATOMIC_RELAXED);
		seen.records = __atomic_load_n(&claim->records, __ATOMIC_RELAXED);
		uint64_t bytes = __atomic_load_n(&claim->bytes, __ATOMIC_RELAXED);
		seen.discarded = bytes & RELAY_CLAIM_DISCARDED;
		seen.n_records = (bytes >> RELAY_CLAIM_MORE_SHIFT) + 1;
		/* Pairs with the fence in relay_claim_state(): if the word is unchanged, the
		 * fields belong to it. */
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		if (__atomic_load_n(&claim->word, __ATOMIC_RELAXED) == seen.word)
			break;
	}
	seen.claim = claim;
	return seen;
}

/* True if the claim was made in the memory of the sub-buffer at `next`, one lap before or earlier. */
static bool is_lap_before(const struct rchan_buf *buf, uint64_t word, uint64_t next)
{
	uint64_t number = relay_pos_number(buf, next);
	return number >= buf->n_subbufs && word != RELAY_CLAIM_FREE &&
	       (word & RELAY_CLAIM_STATE) != RELAY_CLAIM_PENDING &&
	       relay_pos_number(buf, word) <= number - buf->n_subbufs;
}

bool relay_claims_hold(struct rchan_buf *buf, uint64_t next)
{
	for (uint32_t i = 0; i < relay_claims_n_used(buf); i++) {
		uint64_t word = word_of(&buf->claims[i]);
		if (is_lap_before(buf, word, next) && (word & RELAY_CLAIM_STATE) == RELAY_CLAIM_TAKEN &&
		    !relay_claim_reap(buf, &buf->claims[i]))
			return true;
	}
	return false;
}

bool relay_claims_fill(struct rchan_buf *buf, uint64_t pos)
{
	for (uint32_t i = 0; i < relay_claims_n_used(buf); i++) {
		struct relay_claim_view seen = view(&buf->claims[i]);
		if ((seen.word & RELAY_CLAIM_STATE) == RELAY_CLAIM_TAKEN && seen.length != RELAY_CLAIM_SWITCH &&
		    relay_pos_number(buf, seen.word) == relay_pos_number(buf, pos) &&
		    !relay_claim_reap(buf, seen.claim))
			return true;
	}
	return false;
}

void relay_claims_drop_holes(struct rchan_buf *buf, uint64_t next)
{
	/* Readers count the holes' records as overwritten, with all others of the sub-buffer. */
	for (uint32_t i = 0; i < relay_claims_n_used(buf); i++) {
		uint64_t word = word_of(&buf->claims[i]);
		if (is_lap_before(buf, word, next) && (word & RELAY_CLAIM_STATE) == RELAY_CLAIM_HOLE)
			change_word(&buf->claims[i], word, RELAY_CLAIM_FREE);
	}
}

struct relay_claim_view relay_claims_first(const struct rchan_buf *buf, uint64_t pos)
{
	struct relay_claim_view first = {0};
	uint64_t number = relay_pos_number(buf, pos), least = buf->subbuf_size;
	for (uint32_t i = 0; i < relay_claims_n_used(buf); i++) {
		struct relay_claim_view seen = view(&buf->claims[i]);
		uint64_t state = seen.word & RELAY_CLAIM_STATE, offset = relay_pos_offset(buf, seen.word);
		if ((state != RELAY_CLAIM_TAKEN && state != RELAY_CLAIM_HOLE) || seen.length == RELAY_CLAIM_SWITCH ||
		    relay_pos_number(buf, seen.word) != number || offset < relay_pos_offset(buf, pos) ||
		    offset >= least)
			continue;
		first = seen;
		least = offset;
	}
	return first;
}

bool relay_claims_busy(struct rchan_buf *buf)
{
	help_last(buf);
	for (uint32_t i = 0; i < relay_claims_n_used(buf); i++) {
		uint64_t state = word_of(&buf->claims[i]) & RELAY_CLAIM_STATE;
		if (state == RELAY_CLAIM_TAKEN && !relay_claim_reap(buf, &buf->claims[i]))
			return true;
	}
	return false;
}

void relay_claims_clear(struct rchan_buf *buf)
{
	for (uint32_t i = 0; i < relay_claims_n_used(buf); i++) {
		uint64_t word = word_of(&buf->claims[i]);
		/* A PENDING claim's reservation will be refused, and its thread releases the claim. */
		if ((word & RELAY_CLAIM_STATE) != RELAY_CLAIM_PENDING)
			change_word(&buf->claims[i], word, RELAY_CLAIM_FREE);
	}
}
