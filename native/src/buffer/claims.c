/* SPDX-License-Identifier: MIT */
/*
 * Claims: how a record that takes more than one step survives the death of its writer.
 *
 *     claim.word = MARKED                 so that a signal handler takes another one
 *     claim.word = PENDING | pos          say what is about to be taken
 *     head: {pos, r | ?} -> {pos+length, r+1 | this claim}          take it: one step
 *     copy
 *     claim.word = FREE                   commit
 *
 * Readers stop before the first claim that was taken and is not committed. Whether a PENDING claim was taken
 * can always be told: head names the claim that changed it last, and whoever changes head next first marks
 * that claim TAKEN ("helps"). So: named by head and fitting, or TAKEN: it was taken; PENDING otherwise: not.
 *
 *     FREE -> PENDING -> (TAKEN) -> FREE            its owner lives
 *                        TAKEN -> HOLE -> FREE      its owner died: readers skip the hole, then free it
 *             PENDING -> FREE                       its owner died before it took anything
 *
 * A switch in a lockless buffer is a claim of length RELAY_CLAIM_SWITCH: to help means to write the ledgers of
 * both sub-buffers, word by word with compare-and-swap from what was there before the switch, so that a
 * helper who comes laps too late changes nothing.
 *
 * The first claims of the table belong to the thread that took them until it dies and somebody needs them: no
 * locked instruction to take one. A signal handler that finds its thread's claim in use takes a further one.
 * The next ones are for a single reservation each, for threads that come when the others are all owned.
 *
 * The last ones are for switches alone. A reservation keeps its claim until it is committed; that of a dead thread becomes a
 * hole, which keeps the claim until a reader has passed it. A reader of packets passes it once its sub-buffer is finished,
 * which in a lockless buffer takes a claim, too: were that to be had from the same ones, nobody could ever finish it.
 * A switch leaves no hole, so that the claim of a thread that dies in one is free as soon as somebody looks.
 */
#define _GNU_SOURCE
#include "buffer/claims.h"

#include "base/libc.h"
#include "base/owner.h"
#include "base/quiet.h"
#include "buffer/head.h"

#include <sched.h>

enum {
	CACHED = 8,
	FIND_ROUNDS = 128,
	NONBLOCKING_ROUNDS = 16,
	DOUBTED_ROUNDS = 4,
	LOOK_FOR_DEAD = 64,
	VIEW_TRIES = 16
};

/* Which claim this thread owns in which buffer. Direct-mapped by the buffer's id. */
static __thread struct {
	uint32_t buf_id, epoch; /* epoch: relay_fork_epoch then */
	uint32_t claim;
} cached[CACHED] RELAY_TLS;

uint32_t relay_claims_n_used(const struct rchan_buf *buf)
{
	uint32_t n = __atomic_load_n(&buf->control->n_claims_used, __ATOMIC_ACQUIRE);
	return n < buf->n_claims ? n : buf->n_claims;
}

static uint64_t word_of(const struct relay_claim *claim)
{
	return __atomic_load_n(&claim->word, __ATOMIC_ACQUIRE);
}

static bool change_word(struct relay_claim *claim, uint64_t from, uint64_t to)
{
	return __atomic_compare_exchange_n(&claim->word, &from, to, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

/* Readers look at claims below n_claims_used only: raise it before the claim is used. */
static void raise_used(struct rchan_buf *buf, uint32_t n)
{
	uint32_t old = __atomic_load_n(&buf->control->n_claims_used, __ATOMIC_RELAXED);
	while (old < n && !__atomic_compare_exchange_n(&buf->control->n_claims_used, &old, n, true, __ATOMIC_SEQ_CST,
	                                               __ATOMIC_RELAXED))
		;
}

/* FREE -> MARKED. The claim is this thread's, so only its own signal handlers compete: one instruction, not a locked
 * one. */
static bool mark(struct relay_claim *claim)
{
	uint64_t word = RELAY_CLAIM_FREE;
#if defined(__x86_64__)
	bool marked;
	__asm__ volatile("cmpxchgq %[marked_word], %[word]"
	                 : "=@ccz"(marked), [word] "+m"(claim->word), "+a"(word)
	                 : [marked_word] "r"(RELAY_CLAIM_MARKED)
	                 : "memory");
	return marked;
#else
	return __atomic_compare_exchange_n(&claim->word, &word, RELAY_CLAIM_MARKED, false, __ATOMIC_RELAXED,
	                                   __ATOMIC_RELAXED);
#endif
}

/* Make a free claim ours, if it is ours or nobody's, and mark it. */
static bool try_own(struct rchan_buf *buf, uint32_t i, uint64_t self)
{
	struct relay_claim *claim = &buf->claims[i];
	uint64_t owner = __atomic_load_n(&claim->owner, __ATOMIC_ACQUIRE);
	if (word_of(claim) != RELAY_CLAIM_FREE || (owner && (owner != self || i >= RELAY_N_CLAIMS_KEPT)))
		return false;
	if (!owner &&
	    !__atomic_compare_exchange_n(&claim->owner, &owner, self, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
		return false;
	__atomic_store_n(&claim->token, __atomic_load_n(&buf->token, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
	raise_used(buf, i + 1);
	/* If not, it became a hole in between, or a handler has it: ours for later, if it is one of those we may keep. */
	bool marked = mark(claim);
	if (!marked && i >= RELAY_N_CLAIMS_KEPT)
		__atomic_store_n(&claim->owner, 0, __ATOMIC_RELEASE);
	return marked;
}

static struct relay_claim *find_in(struct rchan_buf *buf, uint32_t from, uint32_t to)
{
	uint64_t self = relay_owner_self();
	for (uint32_t i = from; i < to; i++)
		if (try_own(buf, i, self))
			return &buf->claims[i];
	return NULL;
}

/* How often to look while all are in use. Claims that hold nonsense would cost each record all rounds, so it is less
 * often as long as nobody has found one since that was in vain. */
static int find_rounds(const struct rchan_buf *buf)
{
	if (buf->never_waits)
		return 1;
	/* Relaxed: it only says how long to look. */
	if (__atomic_load_n(&buf->finds_none, __ATOMIC_RELAXED))
		return DOUBTED_ROUNDS;
	return buf->may_block ? FIND_ROUNDS : NONBLOCKING_ROUNDS;
}

/* One of those that are for switches alone. */
static struct relay_claim *find_for_switch(struct rchan_buf *buf)
{
	struct relay_claim *claim = find_in(buf, RELAY_N_RESERVATIONS, buf->n_claims);
	/* Threads that died in the middle of a switch have them all. */
	if (!claim && !relay_is_quiet() && relay_buf_resolve(buf, 0))
		claim = find_in(buf, RELAY_N_RESERVATIONS, buf->n_claims);
	return claim;
}

/* One to keep; else one for a single reservation, and then this search comes again with the next: so the dead give
 * theirs back. To ask who is dead costs system calls: now and then. */
static struct relay_claim *find(struct rchan_buf *buf, bool is_switch)
{
	for (int rounds = find_rounds(buf); rounds--;) {
		struct relay_claim *claim = find_in(buf, 0, RELAY_N_CLAIMS_KEPT);
		if (!claim && !relay_is_quiet() &&
		    __atomic_fetch_add(&buf->n_unkept, 1, __ATOMIC_RELAXED) % LOOK_FOR_DEAD == 0 &&
		    relay_buf_resolve(buf, 0))
			claim = find_in(buf, 0, RELAY_N_CLAIMS_KEPT);
		if (!claim)
			claim = find_in(buf, RELAY_N_CLAIMS_KEPT, RELAY_N_RESERVATIONS);
		if (!claim && is_switch)
			claim = find_for_switch(buf);
		if (claim) {
			if (__atomic_load_n(&buf->finds_none, __ATOMIC_RELAXED))
				__atomic_store_n(&buf->finds_none, false, __ATOMIC_RELAXED);
			return claim;
		}
		/* All in use this moment. */
		if (rounds)
			sched_yield();
	}
	__atomic_store_n(&buf->finds_none, true, __ATOMIC_RELAXED);
	return NULL;
}

static struct relay_claim *take(struct rchan_buf *buf, bool is_switch)
{
	/* Pairs with the release in relay_buf_set_token(): what find() takes for a new id has the new token. */
	uint32_t id = __atomic_load_n(&buf->id, __ATOMIC_ACQUIRE), slot = id % CACHED;
	uint32_t epoch = __atomic_load_n(&relay_fork_epoch, __ATOMIC_RELAXED);
	if (__builtin_expect(cached[slot].buf_id == id && cached[slot].epoch == epoch, 1)) {
		struct relay_claim *claim = &buf->claims[cached[slot].claim];
		/* Not free: it is a reservation, or this is a signal handler and the interrupted code is using it. */
		if (__builtin_expect(word_of(claim) == RELAY_CLAIM_FREE && mark(claim), 1))
			return claim;
	}
	struct relay_claim *claim = find(buf, is_switch);
	if (claim && claim - buf->claims < RELAY_N_CLAIMS_KEPT) {
		/* A handler between these lines leaves one of ours, whichever. */
		cached[slot].epoch = 0;
		__atomic_signal_fence(__ATOMIC_SEQ_CST);
		cached[slot].claim = (uint32_t)(claim - buf->claims);
		cached[slot].buf_id = id;
		__atomic_signal_fence(__ATOMIC_SEQ_CST);
		cached[slot].epoch = epoch;
	}
	return claim;
}

struct relay_claim *relay_claim_take(struct rchan_buf *buf)
{
	return take(buf, false);
}

struct relay_claim *relay_claim_take_for_switch(struct rchan_buf *buf)
{
	return take(buf, true);
}

static void swap_ledger(uint64_t *at, uint64_t from, uint64_t to)
{
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
	 * of the three words ever takes an old value again. */
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
	if (owner == 0 || owner > buf->n_claims)
		return;
	struct relay_claim *claim = &buf->claims[owner - 1];
	uint64_t word = word_of(claim), from = word & RELAY_POSITION_MASK;
	if ((word & RELAY_CLAIM_STATE) != RELAY_CLAIM_PENDING || !relay_pos_valid(buf, from))
		return;
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

static uint64_t owner_of(const struct relay_claim *claim)
{
	return __atomic_load_n(&claim->owner, __ATOMIC_ACQUIRE);
}

/* Of an owner that is dead. true: the claim changed. */
static bool reap(struct rchan_buf *buf, struct relay_claim *claim, uint64_t owner)
{
	uint64_t pos, second;
	if (relay_head(buf, &pos, &second))
		return false;
	relay_claims_help(buf, pos, second);
	uint64_t word = word_of(claim), state = word & RELAY_CLAIM_STATE;
	/* Somebody else may have reaped it, and a living thread taken it: the word is not the dead one's, then. */
	if (owner_of(claim) != owner)
		return true;
	bool record = __atomic_load_n(&claim->length, __ATOMIC_RELAXED) != RELAY_CLAIM_SWITCH;
	if (state == RELAY_CLAIM_TAKEN && record)
		make_hole(buf, claim, word);
	else if (state == RELAY_CLAIM_PENDING || state == RELAY_CLAIM_TAKEN)
		change_word(claim, word, RELAY_CLAIM_FREE);
	/* The token goes first: it must never stand beside a new owner. */
	__atomic_store_n(&claim->token, 0, __ATOMIC_RELEASE);
	__atomic_compare_exchange_n(&claim->owner, &owner, 0, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
	return true;
}

bool relay_claim_reap(struct rchan_buf *buf, struct relay_claim *claim)
{
	uint64_t owner = owner_of(claim);
	/* To ask takes system calls. */
	return owner && !relay_is_quiet() && !relay_owner_alive(owner) && reap(buf, claim, owner);
}

int relay_buf_resolve(struct rchan_buf *buf, uint64_t token)
{
	int n = 0;
	for (uint32_t i = 0; i < relay_claims_n_used(buf); i++) {
		struct relay_claim *claim = &buf->claims[i];
		/* Before the token, which goes before it: so they belong together. */
		uint64_t owner = owner_of(claim);
		if (owner && token && __atomic_load_n(&claim->token, __ATOMIC_ACQUIRE) == token)
			n += reap(buf, claim, owner);
		else
			n += relay_claim_reap(buf, claim);
	}
	return n;
}

void relay_buf_set_token(struct rchan_buf *buf, uint64_t token)
{
	__atomic_store_n(&buf->token, token, __ATOMIC_RELAXED);
	/* Claims that threads have kept get the token, too: under a new id they find them anew. */
	relay_claims_forget_kept(buf);
}

void relay_claims_forget_kept(struct rchan_buf *buf)
{
	static uint32_t last_id;
	__atomic_store_n(&buf->id, __atomic_add_fetch(&last_id, 1, __ATOMIC_RELAXED), __ATOMIC_RELEASE);
}

struct relay_claim *relay_claim_at(const struct rchan_buf *buf, const void *to)
{
	for (uint32_t i = 0; i < relay_claims_n_used(buf); i++) {
		uint64_t word = word_of(&buf->claims[i]);
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
