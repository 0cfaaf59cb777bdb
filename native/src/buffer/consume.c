/* SPDX-License-Identifier: MIT */
/*
 * Consuming one buffer.
 *
 *     consumer.position                                   head
 *          v                                               v
 *     |aaaa|bbbb....|ccccccHHHH cc|dddddddddddddddddTTTTddd|      . padding  H hole  T taken, not committed
 *          '----'    '----'    '-''-----------------'             spans; the next read stops at T
 *
 * begin() walks a copy of the consumer's state along the data and remembers where it came to; end() makes that
 * the state. The state is kept in two copies, so that a consumer that is killed leaves the old or the new.
 *
 * In a format with packets a reader gets finished sub-buffers only, each with a head (buffer/packet.c) in place of its first
 * bytes.
 *
 * In overwrite mode the memory may change under a reader's eyes. It was intact if, after the reading, head is
 * still less than n_subbufs ahead: writers publish a switch before they store into the sub-buffer it enters. In
 * mode callback that sub-buffer may wait to be begun, with the old data in it, until the client says yes; and the one
 * before it may still get a footer, until the client has said anything at all.
 */
#define _GNU_SOURCE
#include "buffer/consume.h"

#include "base/owner.h"
#include "buffer/claims.h"
#include "buffer/head.h"
#include "buffer/holes.h"
#include "buffer/packet.h"
#include "buffer/subbuf_start.h"

#include <string.h>

enum {
	READ_TRIES = 100, /* each failed one means that somebody consumed meanwhile */
	LAPPED_TRIES = 1000,
	HOLES_TRIES = 32, /* until all holes of one sub-buffer are known */
	LOCK_TRIES = 16,  /* each means that a dead owner was replaced by another one */
	WHOLE_PIECES_BYTES = 4096
};

/* What it costs, in units of RELAY_WORK, to look at one claim's few words in 4 of them, and to ask whether somebody lives
 * in system calls. */
enum { CLAIMS_A_UNIT = 4, BURY_UNITS = 512 };

/* Who died with the lock may have been about to reset: if he waited for writers still, it is as if he had not begun.
 * If he did not: only another reset can tell what to make of what he left. */
static void end_reset(struct rchan_buf *buf)
{
	if (!(__atomic_load_n(&buf->control->resets, __ATOMIC_ACQUIRE) & 1))
		__atomic_fetch_and(&buf->control->flags, ~(uint32_t)RELAY_RESETTING, __ATOMIC_SEQ_CST);
}

int relay_reader_lock(struct rchan_buf *buf)
{
	uint64_t self = relay_owner_self(), holder = 0;
	for (int i = 0; i < LOCK_TRIES; i++) {
		/* Acquire pairs with the release in relay_reader_unlock(): the state that the last holder left. */
		if (__atomic_compare_exchange_n(&buf->control->reader_lock, &holder, self, false, __ATOMIC_ACQUIRE,
		                                __ATOMIC_RELAXED)) {
			if (holder)
				end_reset(buf);
			return 0;
		}
		if (holder && relay_owner_alive(holder))
			return -EBUSY;
		/* Dead: the next round takes the lock from exactly that holder. */
	}
	return -EBUSY;
}

void relay_reader_unlock(struct rchan_buf *buf)
{
	uint64_t self = relay_owner_self();
	__atomic_compare_exchange_n(&buf->control->reader_lock, &self, 0, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
}

bool relay_reader_is_held(const struct rchan_buf *buf)
{
	uint64_t holder = __atomic_load_n(&buf->control->reader_lock, __ATOMIC_RELAXED);
	return holder && holder != relay_owner_self() && relay_owner_alive(holder);
}

/* Is the sum of these parts no more than the whole? */
static bool fit(uint64_t whole, uint64_t part1, uint64_t part2, uint64_t part3)
{
	return part1 <= whole && part2 <= whole - part1 && part3 <= whole - part1 - part2;
}

/* All that can be said of a state by itself. */
static int check_state(struct rchan_buf *buf, const struct relay_consumer *state)
{
	struct relay_damage *damage = &buf->damage;
	if (!relay_pos_valid(buf, state->position))
		return relay_damage_note(damage, "relay_consumer.position", 0, state->position,
		                         "not a position in sub-buffers of so many bytes:", buf->subbuf_size);
	if (relay_damage_above(damage, "relay_consumer.bytes", 0, state->bytes,
	                       relay_pos_most_bytes(buf, state->position)) ||
	    relay_damage_above(damage, "relay_consumer.records", 0, state->records, RELAY_RECORDS_MASK) ||
	    relay_damage_above(damage, "relay_consumer.reads", 0, state->reads, state->bytes))
		return -EBADMSG;
	if (!fit(state->records, state->overwritten_records, state->torn_records, state->discarded_records))
		return relay_damage_say(damage, "relay_consumer: more records are lost or discarded than were passed");
	if (!fit(state->bytes, state->overwritten_bytes, state->torn_bytes, state->discarded_bytes))
		return relay_damage_say(damage, "relay_consumer: more bytes are lost or discarded than were passed");
	return 0;
}

int relay_consumer_read(struct rchan_buf *buf, struct relay_consumer *state)
{
	const struct relay_control *control = buf->control;
	for (int i = 0; i < READ_TRIES; i++) {
		uint32_t current = __atomic_load_n(&control->current, __ATOMIC_ACQUIRE);
		*state = control->consumer[current & 1];
		/* A copy is rewritten only after `current` has moved on from it. */
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		if (__atomic_load_n(&control->current, __ATOMIC_RELAXED) == current)
			return check_state(buf, state);
	}
	return relay_damage_say(&buf->damage, "relay_control.current does not come to rest");
}

/* Make `state` the truth. The caller has the lock. */
static void publish(struct rchan_buf *buf, const struct relay_consumer *state)
{
	struct relay_control *control = buf->control;
	uint32_t next = __atomic_load_n(&control->current, __ATOMIC_RELAXED) + 1;
	control->consumer[next & 1] = *state;
	/* Pairs with the acquire in relay_consumer_read(): the copy before the flip. */
	__atomic_store_n(&control->current, next, __ATOMIC_RELEASE);
	/* Pairs with the acquire in has_room(): our loads of the data before the writers' stores. */
	__atomic_store_n(&control->consumed, state->position, __ATOMIC_RELEASE);
}

void relay_consumer_clear(struct rchan_buf *buf)
{
	publish(buf, &(struct relay_consumer){0});
}

static struct relay_subbuf subbuf_at(const struct rchan_buf *buf, uint64_t pos)
{
	const struct relay_subbuf *subbuf = relay_pos_ledger(buf, pos);
	/* Relaxed: published by head, which the caller loaded before and checks after. */
	return (struct relay_subbuf){.end = __atomic_load_n(&subbuf->end, __ATOMIC_RELAXED),
	                             .start_records = __atomic_load_n(&subbuf->start_records, __ATOMIC_RELAXED),
	                             .start_bytes = __atomic_load_n(&subbuf->start_bytes, __ATOMIC_RELAXED)};
}

/* head, with the last reservation helped, so that all ledgers up to it are right. */
static int settled_head(struct rchan_buf *buf, uint64_t *head, uint64_t *records)
{
	uint64_t second;
	if (relay_head_checked(buf, head, &second))
		return -EBADMSG;
	relay_claims_help(buf, *head, second);
	*records = second & RELAY_RECORDS_MASK;
	return 0;
}

static uint64_t ahead(const struct rchan_buf *buf, uint64_t head, uint64_t pos)
{
	return relay_pos_number(buf, head) - relay_pos_number(buf, pos);
}

static bool is_lapped(const struct rchan_buf *buf, uint64_t head, uint64_t pos)
{
	return buf->mode != RELAY_NO_OVERWRITE && relay_is_lapped(buf, head, relay_pos_number(buf, pos));
}

bool relay_consume_is_lapped(const struct rchan_buf *buf, uint64_t pos)
{
	uint64_t head, second;
	return !relay_head(buf, &head, &second) && is_lapped(buf, head, pos);
}

/* The sub-buffer at `oldest` stands, and `state` is before it: what lies between is lost. */
static int pass_overwritten(struct rchan_buf *buf, struct relay_consumer *state, uint64_t oldest,
                            const struct relay_subbuf *subbuf)
{
	uint64_t index = relay_pos_ledger_index(buf, oldest);
	if (relay_damage_below(&buf->damage, "relay_subbuf[].start_records", index, subbuf->start_records,
	                       state->records) ||
	    relay_damage_above(&buf->damage, "relay_subbuf[].start_records", index, subbuf->start_records,
	                       RELAY_RECORDS_MASK) ||
	    relay_damage_below(&buf->damage, "relay_subbuf[].start_bytes", index, subbuf->start_bytes, state->bytes) ||
	    relay_damage_above(&buf->damage, "relay_subbuf[].start_bytes", index, subbuf->start_bytes,
	                       relay_pos_most_bytes(buf, oldest)))
		return -EBADMSG;
	state->overwritten_records += subbuf->start_records - state->records;
	state->overwritten_bytes += subbuf->start_bytes - state->bytes;
	state->position = oldest;
	state->records = subbuf->start_records;
	state->bytes = subbuf->start_bytes;
	return 0;
}

int relay_consumer_catch_up(struct rchan_buf *buf, struct relay_consumer *state)
{
	for (int i = 0; i < LAPPED_TRIES; i++) {
		uint64_t head, records, again;
		if (settled_head(buf, &head, &records))
			return -EBADMSG;
		if (!is_lapped(buf, head, state->position))
			return relay_damage_above(&buf->damage, "the consumer's distance from head, in sub-buffers,", 0,
			                          ahead(buf, head, state->position), buf->n_subbufs);
		uint64_t oldest = relay_pos_start(buf, relay_oldest(buf, head));
		struct relay_subbuf subbuf = subbuf_at(buf, oldest);
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		if (settled_head(buf, &again, &records))
			return -EBADMSG;
		if (!is_lapped(buf, again, oldest)) /* else the ledger may be of a later lap */
			return pass_overwritten(buf, state, oldest, &subbuf);
	}
	return relay_damage_say(&buf->damage, "relay_control.head does not come to rest");
}

/* One walk along the data. */
struct walk {
	struct rchan_buf *buf;
	struct relay_plan *plan; /* plan->to is where the walk is */
	uint64_t head, head_records;
	uint64_t produced;        /* sub-buffers whose end is certain */
	uint64_t at;              /* stream position: data before it is passed over */
	uint64_t skip, passed;    /* so many bytes of data are passed over; have been */
	struct relay_span *spans; /* NULL: nobody wants the data */
	size_t n_spans, n_used;
	size_t max_bytes, total;
	uint64_t until;               /* number of the sub-buffer to stop at, if it is not 0 */
	struct relay_claim_view stop; /* the first claim at or behind `looked_at`, as it was found */
	uint64_t looked_at;           /* position from which on the claims were looked at; with is_looked_at */
	bool is_looked_at;
	struct relay_holes *holes;    /* of the sub-buffer where the walk is; NULL: buf->holes */
	struct relay_packet *packets; /* the heads of packets; NULL: nobody wants them */
	struct relay_packet *packet;  /* that of the sub-buffer where the walk is */
};

/* How far the current sub-buffer is readable, and why it ends there. */
struct stretch {
	uint64_t end;                 /* offset */
	uint64_t end_records;         /* record number there */
	struct relay_claim_view stop; /* what stands there: nothing, a taken claim or a hole */
	uint64_t discarded;           /* or a hole of so many bytes that needs no claim */
	bool finished;                /* end is the end of a finished sub-buffer */
};

/*
 * The first claim at or behind pos. Up to it nothing of what has been written can become a hole any more, so the list of
 * holes, loaded later, tells all of them; the claims need not be looked at again for each.
 */
static struct relay_claim_view first_claim(struct walk *walk, uint64_t pos)
{
	struct rchan_buf *buf = walk->buf;
	bool is_known = walk->is_looked_at && pos >= walk->looked_at &&
	                relay_pos_number(buf, pos) == relay_pos_number(buf, walk->looked_at) &&
	                (!walk->stop.claim || pos <= (walk->stop.word & RELAY_POSITION_MASK));
	if (!is_known) {
		walk->stop = relay_claims_first(buf, pos);
		walk->looked_at = pos;
		walk->is_looked_at = true;
		relay_work_add(buf, 1 + relay_claims_n_used(buf) / CLAIMS_A_UNIT);
	}
	return walk->stop;
}

/* The end of a finished sub-buffer. */
static int look_at_end(struct walk *walk, struct stretch *stretch, const struct relay_subbuf *subbuf)
{
	struct rchan_buf *buf = walk->buf;
	uint64_t pos = walk->plan->to.position, next = relay_pos_next(buf, pos);
	stretch->finished = true;
	if (relay_pos_number(buf, subbuf->end) != relay_pos_number(buf, pos) ||
	    relay_pos_offset(buf, subbuf->end) > buf->subbuf_size)
		return relay_damage_note(&buf->damage, "relay_subbuf[].end", relay_pos_ledger_index(buf, pos),
		                         subbuf->end, "not a position in sub-buffer", relay_pos_number(buf, pos));
	stretch->end = relay_pos_offset(buf, subbuf->end);
	stretch->end_records = subbuf_at(buf, next).start_records;
	return relay_damage_above(&buf->damage, "relay_subbuf[].start_records", relay_pos_ledger_index(buf, next),
	                          stretch->end_records, walk->head_records);
}

static int look_ahead(struct walk *walk, struct stretch *stretch)
{
	struct rchan_buf *buf = walk->buf;
	const struct relay_consumer *to = &walk->plan->to;
	uint64_t pos = to->position;
	*stretch = (struct stretch){.end = relay_pos_offset(buf, walk->head), .end_records = walk->head_records};
	struct relay_subbuf subbuf = subbuf_at(buf, pos);
	bool finished = relay_pos_number(buf, pos) != relay_pos_number(buf, walk->head);
	if (finished && look_at_end(walk, stretch, &subbuf))
		return -EBADMSG;
	if (relay_damage_below(&buf->damage, "the end of the data, an offset,", 0, stretch->end,
	                       relay_pos_offset(buf, pos)) ||
	    relay_damage_above(&buf->damage, "relay_subbuf[].start_records", relay_pos_ledger_index(buf, pos),
	                       subbuf.start_records, stretch->end_records))
		return -EBADMSG;
	stretch->stop = first_claim(walk, pos);
	if (stretch->stop.claim && relay_pos_offset(buf, stretch->stop.word) < stretch->end) {
		uint64_t claim = (uint64_t)(stretch->stop.claim - buf->claims);
		if (stretch->stop.records >= stretch->end_records)
			return relay_damage_note(&buf->damage, "relay_claim[].records", claim, stretch->stop.records,
			                         "not less than", stretch->end_records);
		stretch->end = relay_pos_offset(buf, stretch->stop.word);
		stretch->end_records = stretch->stop.records;
		stretch->finished = false;
	} else {
		stretch->stop.claim = NULL;
	}
	const struct relay_found_hole *hole;
	if (relay_holes_first(buf, walk->holes ? walk->holes : &buf->holes, pos, &hole))
		return -EINPROGRESS;
	if (hole && hole->offset < stretch->end) {
		if (hole->record >= stretch->end_records - subbuf.start_records)
			return relay_damage_note(&buf->damage, "relay_hole.record", 0, hole->record, "not less than",
			                         stretch->end_records - subbuf.start_records);
		stretch->end = hole->offset;
		stretch->end_records = subbuf.start_records + hole->record;
		stretch->discarded = hole->length;
		stretch->stop.claim = NULL;
		stretch->finished = false;
	}
	return relay_damage_below(&buf->damage, "the number of the records up to there", 0, stretch->end_records,
	                          to->records);
}

/* Step over a record that never came to be. 0 or -EBADMSG. */
static int pass_hole(struct walk *walk, const struct stretch *stretch)
{
	struct relay_consumer *to = &walk->plan->to;
	uint64_t length = stretch->discarded ? stretch->discarded : stretch->stop.length;
	if (length == 0 || length > walk->buf->subbuf_size - stretch->end)
		return relay_damage_note(&walk->buf->damage, "the length of a hole", 0, length,
		                         "not 1 or more and at most", walk->buf->subbuf_size - stretch->end);
	if (!stretch->discarded) {
		ptrdiff_t claim = stretch->stop.claim - walk->buf->claims;
		walk->plan->holes[claim / 64] |= 1ull << claim % 64;
	}
	bool torn = !stretch->discarded && !stretch->stop.discarded;
	*(torn ? &to->torn_records : &to->discarded_records) += 1;
	*(torn ? &to->torn_bytes : &to->discarded_bytes) += length;
	to->position += length;
	to->bytes += length;
	to->records = stretch->end_records + 1;
	return 0;
}

/* Go on by `length` bytes of the stretch. */
static void advance(struct relay_consumer *to, const struct stretch *stretch, uint64_t length, bool whole)
{
	to->position += length;
	to->bytes += length;
	if (whole)
		to->records = stretch->end_records;
}

/* Take what there is of the stretch. false: no span or byte is left for it. */
static bool take(struct walk *walk, const struct stretch *stretch)
{
	struct relay_consumer *to = &walk->plan->to;
	uint64_t offset = relay_pos_offset(walk->buf, to->position), length = stretch->end - offset;
	uint64_t room = walk->max_bytes - walk->total;
	uint64_t pass = to->bytes < walk->at ? walk->at - to->bytes : walk->skip - walk->passed;
	if (pass) {
		bool whole = length <= pass;
		advance(to, stretch, whole ? length : pass, whole);
		walk->passed += walk->skip ? (whole ? length : pass) : 0;
		return true;
	}
	/* A piece of overwritable memory that is taken in part may lose its rest, in the middle of a record. A
	 * reader of blocks gets whole pieces, then; one that asks for few bytes gets just as many, as in the kernel. */
	bool split = walk->buf->mode == RELAY_NO_OVERWRITE || walk->max_bytes < WHOLE_PIECES_BYTES || !walk->total;
	if (walk->n_used == walk->n_spans || room == 0 || (length > room && !split))
		return false;
	bool whole = length <= room;
	if (!whole)
		length = room;
	const unsigned char *data = relay_pos_data(walk->buf, to->position);
	if (walk->packet && offset < sizeof(*walk->packet)) {
		data = (const unsigned char *)walk->packet + offset;
		whole = whole && length <= sizeof(*walk->packet) - offset;
		if (length > sizeof(*walk->packet) - offset)
			length = sizeof(*walk->packet) - offset;
	}
	if (walk->spans)
		walk->spans[walk->n_used] = (struct relay_span){data, length};
	walk->n_used++;
	walk->total += length;
	advance(to, stretch, length, whole);
	return true;
}

/* What stands where the walk is keeps it: a reservation that is open. true: not any more, its owner was dead. */
static bool reap(struct walk *walk, struct relay_claim *claim)
{
	/* Only a reader that gets nothing asks whether the writer lives: it costs system calls. */
	if (walk->total && !walk->until)
		return false;
	relay_work_add(walk->buf, BURY_UNITS);
	walk->is_looked_at = false;
	return relay_claim_reap(walk->buf, claim);
}

/*
 * Walk from plan->to, which has caught up, to where data, spans or bytes end. 0, -EBADMSG, or -EINPROGRESS: that is as
 * much work as one call may do, and plan->to is as far as it came.
 * In overwrite mode it may have read ledgers while they changed: the caller checks that it was not lapped.
 */
static int walk_data(struct walk *walk)
{
	struct rchan_buf *buf = walk->buf;
	struct relay_consumer *to = &walk->plan->to;
	for (; buf->work; relay_work_add(buf, 1)) {
		struct stretch stretch;
		int err = look_ahead(walk, &stretch);
		if (err)
			return err;
		if (stretch.end > relay_pos_offset(buf, to->position)) {
			if (!take(walk, &stretch))
				return 0;
		} else if (stretch.discarded ||
		           (stretch.stop.claim && (stretch.stop.word & RELAY_CLAIM_STATE) == RELAY_CLAIM_HOLE)) {
			err = pass_hole(walk, &stretch);
			if (err)
				return err;
		} else if (stretch.stop.claim) {
			if (!reap(walk, stretch.stop.claim))
				return 0;
		} else if (stretch.finished && relay_pos_number(buf, to->position) < walk->produced) {
			to->position = relay_pos_next(buf, to->position);
			to->records = stretch.end_records;
			if (relay_pos_number(buf, to->position) == walk->until)
				return 0;
		} else {
			return 0;
		}
	}
	return -EINPROGRESS;
}

/* Pass one finished sub-buffer, whole. 1; 0: there is none, or a reservation in it is still open; or as walk_data(). */
static int pass_subbuf(struct walk *walk)
{
	struct rchan_buf *buf = walk->buf;
	struct relay_plan before = *walk->plan;
	uint64_t number = relay_pos_number(buf, before.to.position);
	uint32_t left = buf->work;
	int err = left ? 0 : -EINPROGRESS;
	walk->until = number + 1;
	if (!err && number < walk->produced) {
		buf->work = RELAY_WORK_SUBBUF;
		err = walk_data(walk);
		uint32_t used = RELAY_WORK_SUBBUF - buf->work;
		buf->work = used < left ? left - used : 0;
		if (!err && relay_pos_number(buf, walk->plan->to.position) == walk->until)
			return 1;
	}
	*walk->plan = before;
	return err;
}

/* Say the head of the sub-buffer where the walk is. 1; 0: it cannot be read whole yet; or as walk_data(). */
static int say_packet(struct walk *walk, struct relay_packet *packet)
{
	struct relay_plan plan = *walk->plan;
	struct walk whole = {.buf = walk->buf,
	                     .plan = &plan,
	                     .head = walk->head,
	                     .head_records = walk->head_records,
	                     .produced = walk->produced,
	                     .holes = walk->holes,
	                     .n_spans = SIZE_MAX,
	                     .max_bytes = SIZE_MAX};
	uint64_t pos = plan.to.position;
	int result = pass_subbuf(&whole);
	if (result != 1 || !packet)
		return result;
	return relay_packet_say(walk->buf, packet, relay_pos_number(walk->buf, pos), walk->head,
	                        relay_pos_offset(walk->buf, pos) + whole.total,
	                        plan.to.overwritten_records + plan.to.torn_records);
}

/* walk_data(), a packet at a time. */
static int walk_packets(struct walk *walk)
{
	struct rchan_buf *buf = walk->buf;
	struct relay_consumer *to = &walk->plan->to;
	for (size_t n = 0; !walk->packets || n < RELAY_N_PACKETS; n++) {
		walk->packet = walk->packets && relay_pos_offset(buf, to->position) < sizeof(*walk->packet)
		                   ? &walk->packets[n]
		                   : NULL;
		int result = say_packet(walk, walk->packet);
		if (result != 1)
			return result;
		walk->until = relay_pos_number(buf, to->position) + 1;
		uint32_t left = buf->work;
		/* So much work as it has just been: none of it is left for the second time. */
		buf->work = RELAY_WORK_SUBBUF;
		int err = walk_data(walk);
		buf->work = left;
		if (err || relay_pos_number(buf, to->position) != walk->until)
			return err;
	}
	return 0;
}

static int see_head(struct walk *walk)
{
	int err = settled_head(walk->buf, &walk->head, &walk->head_records);
	/* Before the ledgers are read: a sub-buffer's end is certain once it counts as produced. */
	if (!err)
		walk->produced = relay_produced(walk->buf, walk->head);
	return err;
}

/* Plan a consumption into walk->plan, with no lock and without changing the consumer's state. */
static int plan(struct walk *walk)
{
	struct rchan_buf *buf = walk->buf;
	struct relay_consumer from = walk->plan->from;
	for (int i = 0; i < LAPPED_TRIES; i++) {
		*walk->plan = (struct relay_plan){.from = from, .to = from};
		walk->n_used = 0;
		walk->total = 0;
		walk->passed = 0;
		walk->is_looked_at = false;
		uint64_t again, records;
		int err = relay_consumer_catch_up(buf, &walk->plan->to);
		if (err)
			return err;
		uint64_t start = walk->plan->to.position;
		err = see_head(walk);
		if (err)
			return err;
		walk->plan->start = start;
		if (!is_lapped(buf, walk->head, start))
			err = buf->packets ? walk_packets(walk) : walk_data(walk);
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		if (settled_head(buf, &again, &records))
			return -EBADMSG;
		if (!is_lapped(buf, again, start))
			return err;
		relay_damage_forget(&buf->damage);
		if (!buf->work)
			break;
	}
	/* Lapped at each try: by quick writers in small sub-buffers, or by somebody who moves head to and fro. */
	*walk->plan = (struct relay_plan){.from = from, .to = from};
	walk->n_used = 0;
	walk->total = 0;
	return -EINPROGRESS;
}

/* Has somebody walked before from before `state` to behind it? */
static bool goes_on(const struct rchan_buf *buf, const struct relay_progress *progress,
                    const struct relay_consumer *state)
{
	const struct relay_consumer *to = &progress->to;
	/* Relaxed: after a reset the caller, who sees it, comes again. In overwrite mode, what was lost since is to be
	 * counted as lost. */
	return progress->is_set && progress->resets == __atomic_load_n(&buf->control->resets, __ATOMIC_RELAXED) &&
	       progress->from <= state->position && state->position <= to->position && to->bytes >= state->bytes &&
	       to->overwritten_bytes == state->overwritten_bytes && to->discarded_bytes >= state->discarded_bytes &&
	       to->torn_bytes >= state->torn_bytes;
}

/* To be called before the walk: what it finds is of this reset or a later one. */
static void start_at(const struct rchan_buf *buf, struct relay_progress *progress, const struct relay_consumer *state)
{
	if (goes_on(buf, progress, state))
		return;
	progress->is_set = true;
	progress->resets = __atomic_load_n(&buf->control->resets, __ATOMIC_RELAXED);
	progress->from = state->position;
	progress->to = *state;
}

int relay_consume_peek(struct rchan_buf *buf, const struct relay_consumer *state)
{
	struct relay_progress *empty = &buf->empty;
	start_at(buf, empty, state);
	struct relay_plan peeked = {.from = empty->to};
	struct relay_span span;
	struct walk walk = {.buf = buf, .plan = &peeked, .spans = &span, .n_spans = 1, .max_bytes = 1};
	int err = plan(&walk);
	if (walk.total)
		return err == -EBADMSG ? err : 1;
	/* Nothing but padding and holes up to there: the next look begins there. */
	if (err != -EBADMSG)
		empty->to = peeked.to;
	return err;
}

uint64_t relay_consume_holes(struct rchan_buf *buf, const struct relay_consumer *state)
{
	struct relay_progress *passed = &buf->passed;
	if (__atomic_load_n(&buf->control->n_holes, __ATOMIC_RELAXED) == state->discarded_records + state->torn_records)
		return 0;
	start_at(buf, passed, state);
	struct relay_plan all = {.from = passed->to};
	struct walk walk = {
	    .buf = buf, .plan = &all, .n_spans = SIZE_MAX, .max_bytes = SIZE_MAX, .holes = &buf->holes_ahead};
	if (plan(&walk) != -EBADMSG && all.to.overwritten_bytes == state->overwritten_bytes)
		passed->to = all.to;
	return passed->to.discarded_bytes - state->discarded_bytes + passed->to.torn_bytes - state->torn_bytes;
}

static int look(struct rchan_buf *buf, struct relay_consumer *state, struct relay_packet *packet,
                uint64_t *start_records, struct relay_span *spans, size_t n_spans)
{
	struct relay_plan look = {.from = *state, .to = *state};
	struct walk walk = {
	    .buf = buf, .plan = &look, .spans = spans, .n_spans = n_spans, .max_bytes = SIZE_MAX, .packet = packet};
	relay_work_begin(buf);
	int result = see_head(&walk);
	uint64_t number = relay_pos_number(buf, state->position);
	*start_records = subbuf_at(buf, state->position).start_records;
	look.to.overwritten_records = 0;
	look.to.records = *start_records;
	if (!result)
		result = say_packet(&walk, packet);
	if (result == 1) {
		walk.until = number + 1;
		buf->work = RELAY_WORK_SUBBUF;
		result = walk_data(&walk);
		*state = look.to;
		if (!result)
			result = relay_pos_number(buf, look.to.position) == walk.until ? (int)walk.n_used : -EBADMSG;
	}
	if (relay_is_lapped(buf, walk.head, number) || relay_consume_stands(buf, number)) {
		relay_damage_forget(&buf->damage);
		return -EAGAIN;
	}
	return result;
}

int relay_consume_look(struct rchan_buf *buf, struct relay_consumer *state, struct relay_packet *packet,
                       uint64_t *start_records, struct relay_span *spans, size_t n_spans)
{
	pthread_mutex_lock(&buf->walking);
	int n = look(buf, state, packet, start_records, spans, n_spans);
	pthread_mutex_unlock(&buf->walking);
	return n;
}

int relay_consume_stands(struct rchan_buf *buf, uint64_t number)
{
	uint64_t head, second;
	/* The caller's loads of the data before this load of head. */
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	if (relay_head(buf, &head, &second))
		return -EBADMSG;
	/* In either mode: in no-overwrite, what is consumed may be overwritten. */
	return relay_is_lapped(buf, head, number) ? -EOVERFLOW : 0;
}

/* Bytes that a reader gets between two states of it. */
static uint64_t data_between(const struct relay_consumer *from, const struct relay_consumer *to)
{
	return to->bytes - from->bytes - (to->overwritten_bytes - from->overwritten_bytes) -
	       (to->torn_bytes - from->torn_bytes) - (to->discarded_bytes - from->discarded_bytes);
}

/*
 * Let a walk that passes data over, from `state` on, begin where the last such walk ran out of work, unless that lies
 * behind what is asked for. What is overwritten since counts as passed over where it was passed, and as lost elsewhere.
 */
static void skip_ahead(struct walk *walk, const struct relay_consumer *state)
{
	struct relay_progress *skipped = &walk->buf->skipped;
	if (!walk->skip)
		return;
	if (goes_on(walk->buf, skipped, state) && data_between(state, &skipped->to) > walk->skip)
		skipped->is_set = false;
	start_at(walk->buf, skipped, state);
	walk->skip -= data_between(state, &skipped->to);
	walk->plan->from = skipped->to;
}

static void free_hole(struct relay_claim *claim, uint64_t passed)
{
	uint64_t word = __atomic_load_n(&claim->word, __ATOMIC_RELAXED);
	/* It may have been lapped and freed meanwhile, and be a hole again, which nobody has passed. */
	if ((word & RELAY_CLAIM_STATE) == RELAY_CLAIM_HOLE && (word & RELAY_POSITION_MASK) < passed)
		__atomic_compare_exchange_n(&claim->word, &word, RELAY_CLAIM_FREE, false, __ATOMIC_RELEASE,
		                            __ATOMIC_RELAXED);
}

/* The plan's end becomes the state, its holes become free claims. */
static void carry_out(struct rchan_buf *buf)
{
	publish(buf, &buf->plan.to);
	for (uint32_t i = 0; i < RELAY_N_CLAIMS / 64; i++)
		for (uint64_t left = buf->plan.holes[i]; left; left &= left - 1)
			free_hole(&buf->claims[64 * i + (uint32_t)__builtin_ctzll(left)], buf->plan.to.position);
}

static int begin_behind(struct rchan_buf *buf, uint64_t skip, size_t max_bytes, struct relay_span *spans,
                        size_t n_spans, size_t *total, uint64_t *end)
{
	struct relay_consumer state;
	*total = 0;
	int err = relay_reader_lock(buf);
	if (err)
		return err;
	struct walk walk = {.buf = buf,
	                    .plan = &buf->plan,
	                    .skip = skip,
	                    .spans = spans,
	                    .n_spans = n_spans,
	                    .max_bytes = max_bytes,
	                    .packets = buf->packets};
	relay_work_begin(buf);
	err = relay_consumer_read(buf, &state);
	if (!err) {
		buf->plan.from = state;
		skip_ahead(&walk, &state);
		err = plan(&walk);
	}
	/* The last holder may have died in the middle of publish(). */
	if (err != -EBADMSG && __atomic_load_n(&buf->control->consumed, __ATOMIC_RELAXED) != state.position)
		publish(buf, &state);
	if (err != -EBADMSG && walk.total) {
		buf->plan.to.reads++;
		buf->plan.active = true;
		*end = buf->plan.to.bytes;
		*total = walk.total;
		return (int)walk.n_used;
	}
	if (err == -EINPROGRESS && skip)
		buf->skipped.to = buf->plan.to;
	if (err != -EBADMSG && !skip && memcmp(&buf->plan.to, &buf->plan.from, sizeof(buf->plan.to)) != 0)
		carry_out(buf); /* padding, holes and losses passed, nothing to give, nothing passed over */
	relay_reader_unlock(buf);
	return err == -EINPROGRESS ? -EBUSY : err;
}

int relay_consume_begin_behind(struct rchan_buf *buf, uint64_t skip, size_t max_bytes, struct relay_span *spans,
                               size_t n_spans, size_t *total, uint64_t *end)
{
	pthread_mutex_lock(&buf->walking);
	int n = begin_behind(buf, skip, max_bytes, spans, n_spans, total, end);
	pthread_mutex_unlock(&buf->walking);
	return n;
}

int relay_consume_begin(struct rchan_buf *buf, size_t max_bytes, struct relay_span *spans, size_t n_spans,
                        size_t *total)
{
	uint64_t end;
	return relay_consume_begin_behind(buf, 0, max_bytes, spans, n_spans, total, &end);
}

int relay_consume_to(struct rchan_buf *buf, uint64_t at)
{
	int err = relay_reader_lock(buf);
	if (err)
		return err;
	struct walk walk = {.buf = buf, .plan = &buf->plan, .at = at};
	pthread_mutex_lock(&buf->walking);
	relay_work_begin(buf);
	err = relay_consumer_read(buf, &buf->plan.from);
	if (!err)
		err = plan(&walk);
	if (err != -EBADMSG)
		carry_out(buf);
	pthread_mutex_unlock(&buf->walking);
	relay_reader_unlock(buf);
	return err == -EINPROGRESS ? -EBUSY : err;
}

/* A callback may be about to let the sub-buffer at `start` be overwritten. 1: it did, or that cannot be known. */
static int wait_for_callback(struct rchan_buf *buf, uint64_t start)
{
	uint64_t head, second;
	if (relay_switch_watch(buf) < 0)
		return 1;
	return relay_head(buf, &head, &second) || is_lapped(buf, head, start);
}

int relay_consume_valid(struct rchan_buf *buf)
{
	uint64_t head, second;
	/* The caller's loads of the data before this load of head. */
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	if (!buf->plan.active || relay_head(buf, &head, &second))
		return -EBADMSG;
	if (is_lapped(buf, head, buf->plan.start))
		return -EOVERFLOW;
	bool undecided =
	    buf->begins && buf->mode != RELAY_NO_OVERWRITE && ahead(buf, head, buf->plan.start) == buf->n_subbufs;
	return undecided && wait_for_callback(buf, buf->plan.start) ? -EOVERFLOW : 0;
}

uint64_t relay_consume_records(const struct rchan_buf *buf)
{
	const struct relay_consumer *from = &buf->plan.from, *to = &buf->plan.to;
	if (!buf->plan.active)
		return 0;
	return to->records - from->records - (to->overwritten_records - from->overwritten_records) -
	       (to->torn_records - from->torn_records) - (to->discarded_records - from->discarded_records);
}

void relay_consume_end(struct rchan_buf *buf)
{
	if (!buf->plan.active)
		return;
	buf->plan.active = false;
	carry_out(buf);
	relay_reader_unlock(buf);
}

void relay_consume_abort(struct rchan_buf *buf)
{
	if (!buf->plan.active)
		return;
	buf->plan.active = false;
	relay_reader_unlock(buf);
}

int relay_buf_subbufs_consumed(struct rchan_buf *buf, uint64_t n)
{
	/* Ignored means that readers stay where they are, also those that were lapped. */
	if (n == 0 || n > buf->n_subbufs)
		return 0;
	int err = relay_reader_lock(buf);
	if (err)
		return err;
	struct walk walk = {.buf = buf, .plan = &buf->plan, .n_spans = SIZE_MAX, .max_bytes = SIZE_MAX};
	pthread_mutex_lock(&buf->walking);
	buf->plan = (struct relay_plan){0};
	err = relay_consumer_read(buf, &buf->plan.to);
	if (!err)
		err = relay_consumer_catch_up(buf, &buf->plan.to);
	if (!err)
		err = see_head(&walk);
	for (int tries = 0; !err && n && tries < HOLES_TRIES;) {
		relay_work_begin(buf); /* for each: the caller has said how many */
		int passed = pass_subbuf(&walk);
		if (passed == 1)
			n--;
		tries = passed == 1 ? 0 : passed == 0 ? HOLES_TRIES : tries + 1;
		err = passed == -EBADMSG ? passed : 0;
	}
	if (!err)
		carry_out(buf);
	pthread_mutex_unlock(&buf->walking);
	relay_reader_unlock(buf);
	return err;
}
