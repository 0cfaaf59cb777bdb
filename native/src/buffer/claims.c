/* SPDX-License-Identifier: MIT */
/*
 * Claims: how a record that takes more than one step survives the death of its writer.
 *
 *     claim.owner.in_use = 1              so that a signal handler takes another one
 *     claim.word = PENDING | pos          say what is about to be taken
 *     head: {pos, r | ?} -> {pos+length, r+1 | this claim}          take it: one step
 *     copy
 *     claim.word = FREE, in_use = 0       commit
 *
 * Readers stop before the first claim that was taken and is not committed. Whether a PENDING claim was taken
 * can always be told: head names the claim that changed it last, and whoever changes head next first marks
 * that claim TAKEN ("helps"). So: named by head and fitting, or TAKEN: it was taken; PENDING otherwise: not.
 *
 *     FREE -> PENDING -> (TAKEN) -> FREE         committed
 *             PENDING -> FREE                    withdrawn, or the owner died before it took anything
 *                        TAKEN -> HOLE -> FREE   discarded and too short for the list (buffer/holes.c), or the owner died:
 *                                                a reader passes the hole, or a lap overwrites it
 *                        TAKEN -> FREE           the owner of a switch died; the switch is complete
 *
 * Except in scheme rseq, a switch is a claim of length RELAY_CLAIM_SWITCH: to help means to write the ledgers of
 * both sub-buffers, word by word with compare-and-swap from what was there before the switch, so that a
 * helper who comes laps too late changes nothing.
 *
 * The last claims of the table (base/claim_table.h) are for switches alone. A reservation keeps its claim until it is
 * committed; that of a dead thread becomes a hole, which keeps the claim until a reader has passed it. A reader of packets
 * passes it once its sub-buffer is finished, which takes a claim, too (not in rseq): were that to be had from the same
 * ones, nobody could ever finish it. A switch leaves no hole, so that the claim of a thread that dies in one is free as soon
 * as somebody looks.
 */
#define _GNU_SOURCE
#include "buffer/claims.h"

#include "buffer/head.h"

/* How often to look for a claim while all are in use; VIEW_TRIES: see view(). */
enum { FIND_ROUNDS = 128, NONBLOCKING_ROUNDS = 16, VIEW_TRIES = 16 };

static uint64_t word_of(const struct relay_claim *claim)
{
	/* Pairs with relay_claim_state() and relay_claim_release() in buffer/claims.h, and with change_word(). */
	return __atomic_load_n(&claim->word, __ATOMIC_ACQUIRE);
}

static bool change_word(struct relay_claim *claim, uint64_t from, uint64_t to)
{
	/* Pairs with word_of(). */
	return __atomic_compare_exchange_n(&claim->word, &from, to, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

static int find_rounds(const struct rchan_buf *buf)
{
	return buf->never_waits ? 1 : buf->may_block ? FIND_ROUNDS : NONBLOCKING_ROUNDS;
}

static struct relay_claim *take_claim(struct rchan_buf *buf, bool for_switch)
{
	uint64_t kept = relay_claim_kept(&buf->claim_table);
	if (__builtin_expect(kept < RELAY_N_CLAIMS, 1)) {
		struct relay_claim *claim = &buf->claims[kept];
		/* Otherwise the claim is a hole or a reservation, or this is a signal handler that interrupted its use. */
		if (__builtin_expect(relay_claim_use(&claim->owner), 1)) {
			if (__builtin_expect(word_of(claim) == RELAY_CLAIM_FREE, 1))
				return claim;
			relay_claim_give_back(buf, claim);
		}
	}
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

static void swap_ledger(uint64_t *at, uint64_t from, uint64_t to)
{
	/* Seen by who sees, in word_of(), what change_word() or relay_claim_release() stores next. */
	__atomic_compare_exchange_n(at, &from, to, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

/* The switch that brought head to {next, second} left from `pos`: write both ledgers. */
static void help_switch(struct rchan_buf *buf, const struct relay_claim *claim, uint64_t word, uint64_t next,
                        uint64_t second)
{
	uint64_t pos = word & RELAY_POSITION_MASK;
	struct relay_subbuf *left = relay_pos_ledger(buf, pos);
	struct relay_subbuf *entered = relay_pos_ledger(buf, next);
	uint64_t records = __atomic_load_n(&claim->records, __ATOMIC_RELAXED);
	uint64_t bytes = __atomic_load_n(&claim->bytes, __ATOMIC_RELAXED);
	uint64_t old_end = __atomic_load_n(&left->end, __ATOMIC_RELAXED);
	uint64_t old_records = __atomic_load_n(&entered->start_records, __ATOMIC_RELAXED);
	uint64_t old_bytes = __atomic_load_n(&entered->start_bytes, __ATOMIC_RELAXED);
	/* All loads above before this check: while head stands, they are from before the switch or right. None
	 * of the three words ever takes an old value again. Pairs with the fence in relay_claim_state() in buffer/claims.h. */
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	if (__atomic_load_n(&buf->control->head.first, __ATOMIC_RELAXED) != next ||
	    __atomic_load_n(&buf->control->head.second[0], __ATOMIC_RELAXED) != second)
		return;
	/* The owner may have used its claim for its next record already, and head still name it. */
	if (__atomic_load_n(&claim->word, __ATOMIC_RELAXED) != word)
		return;
	swap_ledger(&left->end, old_end, pos);
	swap_ledger(&entered->start_records, old_records, records);
	swap_ledger(&entered->start_bytes, old_bytes, bytes);
}

void relay_claims_help(struct rchan_buf *buf, uint64_t pos, uint64_t second)
{
	uint64_t owner = second >> RELAY_OWNER_SHIFT;
	if (owner == 0 || owner > RELAY_N_CLAIMS)
		return;
	struct relay_claim *claim = &buf->claims[owner - 1];
	uint64_t word = word_of(claim), from = word & RELAY_POSITION_MASK;
	if ((word & RELAY_CLAIM_STATE) != RELAY_CLAIM_PENDING || !relay_pos_valid(buf, from))
		return;
	/* Relaxed: of this word, or the word has changed, and change_word() changes nothing. */
	uint64_t length = __atomic_load_n(&claim->length, __ATOMIC_RELAXED);
	if (length == RELAY_CLAIM_SWITCH) {
		if (relay_pos_next(buf, from) != pos)
			return; /* said, not taken */
		help_switch(buf, claim, word, pos, second);
	} else if (from + length != pos) {
		return;
	}
	/* If the claim went on meanwhile, its word has another position, and this changes nothing. */
	change_word(claim, word, RELAY_CLAIM_TAKEN | from);
}

static void make_hole(struct rchan_buf *buf, struct relay_claim *claim, uint64_t word)
{
	if (change_word(claim, word, RELAY_CLAIM_HOLE | (word & RELAY_POSITION_MASK)))
		relay_count_hole(buf);
}

static struct rchan_buf *buf_of(struct relay_claim_table *table)
{
	return (struct rchan_buf *)((char *)table - offsetof(struct rchan_buf, claim_table));
}

/* See relay_claim_table.give_up. A word names a position, and positions do not come again, so that a late thread's
 * compare-and-swap cannot change the claim of a later owner. */
static bool give_up(struct relay_claim_table *table, uint32_t i, uint64_t dead)
{
	struct rchan_buf *buf = buf_of(table);
	struct relay_claim *claim = &buf->claims[i];
	uint64_t pos, second;
	if (relay_head(buf, &pos, &second))
		return false;
	relay_claims_help(buf, pos, second);
	uint64_t word = word_of(claim);
	/* Relaxed: as in relay_claims_help(). */
	bool is_record = __atomic_load_n(&claim->length, __ATOMIC_RELAXED) != RELAY_CLAIM_SWITCH;
	if ((word & RELAY_CLAIM_STATE) != RELAY_CLAIM_TAKEN)
		return false;
	/* Somebody else may have reaped it, and a living thread taken it. Pairs with try_own() in base/claim_table.c. */
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
	/* give_up() has helped, so that a reservation that was made would be TAKEN: this one was not made. */
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

struct relay_claim *relay_claim_at(const struct rchan_buf *buf, const void *to)
{
	for (uint32_t i = 0; i < relay_claims_n_used(buf); i++) {
		uint64_t word = word_of(&buf->claims[i]);
		/* Relaxed: constant while the claim is taken. */
		if ((word & RELAY_CLAIM_STATE) == RELAY_CLAIM_TAKEN && relay_pos_valid(buf, word) &&
		    relay_pos_data(buf, word) == to &&
		    __atomic_load_n(&buf->claims[i].length, __ATOMIC_RELAXED) != RELAY_CLAIM_SWITCH)
			return &buf->claims[i];
	}
	return NULL;
}

void relay_claim_leave_hole(struct rchan_buf *buf, struct relay_claim *claim, bool discarded)
{
	/* Relaxed: the word says that it holds, and it follows. */
	__atomic_store_n(&claim->bytes, discarded, __ATOMIC_RELAXED);
	uint64_t word = word_of(claim);
	make_hole(buf, claim, word);
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

/* One consistent view of a claim; the last attempt, if it never comes to rest (nobody honest does that). */
static struct relay_claim_view view(struct relay_claim *claim)
{
	struct relay_claim_view seen;
	for (int i = 0; i < VIEW_TRIES; i++) {
		/* Pairs with the release in relay_claim_release(): what it covered is complete if it is gone. */
		seen.word = word_of(claim);
		seen.length = __atomic_load_n(&claim->length, __ATOMIC_RELAXED);
		seen.records = __atomic_load_n(&claim->records, __ATOMIC_RELAXED);
		seen.discarded = __atomic_load_n(&claim->bytes, __ATOMIC_RELAXED) != 0;
		/* Pairs with the fence in relay_claim_state(): all three are of one claim if the word stands. */
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		if (__atomic_load_n(&claim->word, __ATOMIC_RELAXED) == seen.word)
			break;
	}
	seen.claim = claim;
	return seen;
}

/* Is it a claim of the sub-buffer a lap before the one at `next`, or of what lay there earlier? */
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
	/* What is overwritten is counted so, hole or not. */
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
		/* Pending ones are refused: their threads release them. */
		if ((word & RELAY_CLAIM_STATE) != RELAY_CLAIM_PENDING)
			change_word(&buf->claims[i], word, RELAY_CLAIM_FREE);
	}
}
