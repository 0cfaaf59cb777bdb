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
 * In a format with packets a reader gets finished sub-buffers only, each with a head (packet.c) in place of its first
 * bytes.
 *
 * In overwrite mode the memory may change under a reader's eyes. It was intact if, after the reading, head is
 * still less than n_subbufs ahead: writers publish a switch before they store into the sub-buffer it enters. In
 * mode callback that sub-buffer may wait to be begun, with the old data in it, until the client says yes; and the one
 * before it may still get a footer, until the client has said anything at all.
 */
#define _GNU_SOURCE
#include "consume.h"

#include "begin.h"
#include "claims.h"
#include "holes.h"
#include "owner.h"
#include "packet.h"

#include <string.h>

enum {
	READ_TRIES = 1000, /* each failed one means that somebody consumed meanwhile */
	LAPPED_TRIES = 1000,
	WHOLE_PIECES_BYTES = 4096
};

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
	/* Acquire pairs with the release in relay_reader_unlock(): the state that the last holder left. */
	while (!__atomic_compare_exchange_n(&buf->control->reader_lock, &holder, self, false, __ATOMIC_ACQUIRE,
	                                    __ATOMIC_RELAXED)) {
		if (holder && relay_owner_alive(holder))
			return -EBUSY;
		/* Dead: the next round takes the lock from exactly that holder. */
	}
	if (holder)
		end_reset(buf);
	return 0;
}

void relay_reader_unlock(struct rchan_buf *buf)
{
	uint64_t self = relay_owner_self();
	__atomic_compare_exchange_n(&buf->control->reader_lock, &self, 0, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
}

bool relay_consumer_read(const struct rchan_buf *buf, struct relay_consumer *state)
{
	const struct relay_control *control = buf->control;
	for (int i = 0; i < READ_TRIES; i++) {
		uint32_t current = __atomic_load_n(&control->current, __ATOMIC_ACQUIRE);
		*state = control->consumer[current & 1];
		/* A copy is rewritten only after `current` has moved on from it. */
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		if (__atomic_load_n(&control->current, __ATOMIC_RELAXED) == current)
			return relay_pos_valid(buf, state->position);
	}
	return false;
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
	if (relay_head(buf, head, &second))
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

int relay_consumer_catch_up(struct rchan_buf *buf, struct relay_consumer *state)
{
	for (int i = 0; i < LAPPED_TRIES; i++) {
		uint64_t head, records, again;
		if (settled_head(buf, &head, &records))
			return -EBADMSG;
		if (!is_lapped(buf, head, state->position))
			return ahead(buf, head, state->position) <= buf->n_subbufs ? 0 : -EBADMSG;
		uint64_t oldest = relay_pos_start(buf, relay_oldest(buf, head));
		struct relay_subbuf subbuf = subbuf_at(buf, oldest);
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		if (settled_head(buf, &again, &records))
			return -EBADMSG;
		if (is_lapped(buf, again, oldest))
			continue; /* the ledger may be of a later lap */
		state->overwritten_records += subbuf.start_records - state->records;
		state->overwritten_bytes += subbuf.start_bytes - state->bytes;
		state->position = oldest;
		state->records = subbuf.start_records;
		state->bytes = subbuf.start_bytes;
		return 0;
	}
	return -EBADMSG;
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

static int look_ahead(struct walk *walk, struct stretch *stretch)
{
	struct rchan_buf *buf = walk->buf;
	uint64_t pos = walk->plan->to.position;
	*stretch = (struct stretch){.end = relay_pos_offset(buf, walk->head), .end_records = walk->head_records};
	struct relay_subbuf subbuf = subbuf_at(buf, pos);
	stretch->finished = relay_pos_number(buf, pos) != relay_pos_number(buf, walk->head);
	if (stretch->finished) {
		if (relay_pos_number(buf, subbuf.end) != relay_pos_number(buf, pos))
			return -EBADMSG;
		stretch->end = relay_pos_offset(buf, subbuf.end);
		stretch->end_records = subbuf_at(buf, relay_pos_next(buf, pos)).start_records;
	}
	if (stretch->end > buf->subbuf_size || stretch->end < relay_pos_offset(buf, pos))
		return -EBADMSG;
	stretch->stop = relay_claims_first(buf, pos);
	if (stretch->stop.claim && relay_pos_offset(buf, stretch->stop.word) < stretch->end) {
		stretch->end = relay_pos_offset(buf, stretch->stop.word);
		stretch->end_records = stretch->stop.records;
		stretch->finished = false;
	} else {
		stretch->stop.claim = NULL;
	}
	const struct relay_found_hole *hole = relay_holes_first(buf, pos);
	if (hole && hole->offset < stretch->end) {
		stretch->end = hole->offset;
		stretch->end_records = subbuf.start_records + hole->record;
		stretch->discarded = hole->length;
		stretch->stop.claim = NULL;
		stretch->finished = false;
	}
	return 0;
}

/* Step over a record that never came to be. 0 or -EBADMSG. */
static int pass_hole(struct walk *walk, const struct stretch *stretch)
{
	struct relay_consumer *to = &walk->plan->to;
	uint64_t length = stretch->discarded ? stretch->discarded : stretch->stop.length;
	if (length == 0 || length > walk->buf->subbuf_size - stretch->end)
		return -EBADMSG;
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

/*
 * Walk from plan->to, which has caught up, to where data, spans or bytes end. 0 or -EBADMSG.
 * In overwrite mode it may have read ledgers while they changed: the caller checks that it was not lapped.
 */
static int walk_data(struct walk *walk)
{
	struct rchan_buf *buf = walk->buf;
	struct relay_consumer *to = &walk->plan->to;
	for (;;) {
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
			/* Only a reader that gets nothing asks whether the writer lives: it costs system calls. */
			if ((walk->total && !walk->until) || !relay_claim_bury(buf, stretch.stop.claim))
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
}

/* Pass one finished sub-buffer, whole; false: there is none, or a reservation in it is still open. */
static bool pass_subbuf(struct walk *walk)
{
	struct relay_plan before = *walk->plan;
	uint64_t number = relay_pos_number(walk->buf, before.to.position);
	walk->until = number + 1;
	if (number < walk->produced && !walk_data(walk) &&
	    relay_pos_number(walk->buf, walk->plan->to.position) == walk->until)
		return true;
	*walk->plan = before;
	return false;
}

/* Say the head of the sub-buffer where the walk is. false: it cannot be read whole yet. */
static bool say_packet(struct walk *walk, struct relay_packet *packet)
{
	struct relay_plan plan = *walk->plan;
	struct walk whole = {.buf = walk->buf,
	                     .plan = &plan,
	                     .head = walk->head,
	                     .head_records = walk->head_records,
	                     .produced = walk->produced,
	                     .n_spans = SIZE_MAX,
	                     .max_bytes = SIZE_MAX};
	uint64_t pos = plan.to.position;
	if (!pass_subbuf(&whole))
		return false;
	return !packet || relay_packet_say(walk->buf, packet, relay_pos_number(walk->buf, pos), walk->head,
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
		if (!say_packet(walk, walk->packet))
			return 0;
		walk->until = relay_pos_number(buf, to->position) + 1;
		int err = walk_data(walk);
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
	}
	return -EBADMSG;
}

int relay_consume_peek(struct rchan_buf *buf, const struct relay_consumer *state)
{
	struct relay_plan peeked = {.from = *state};
	struct relay_span span;
	struct walk walk = {.buf = buf, .plan = &peeked, .spans = &span, .n_spans = 1, .max_bytes = 1};
	int err = plan(&walk);
	return err ? err : walk.total > 0;
}

uint64_t relay_consume_holes(struct rchan_buf *buf, const struct relay_consumer *state)
{
	if (__atomic_load_n(&buf->control->n_holes, __ATOMIC_RELAXED) == state->discarded_records + state->torn_records)
		return 0;
	struct relay_plan all = {.from = *state};
	struct walk walk = {.buf = buf, .plan = &all, .n_spans = SIZE_MAX, .max_bytes = SIZE_MAX};
	return plan(&walk) ? 0
	                   : all.to.discarded_bytes - state->discarded_bytes + all.to.torn_bytes - state->torn_bytes;
}

int relay_consume_look(struct rchan_buf *buf, struct relay_consumer *state, struct relay_packet *packet,
                       uint64_t *start_records, struct relay_span *spans, size_t n_spans)
{
	struct relay_plan look = {.from = *state, .to = *state};
	struct walk walk = {
	    .buf = buf, .plan = &look, .spans = spans, .n_spans = n_spans, .max_bytes = SIZE_MAX, .packet = packet};
	int err = see_head(&walk);
	uint64_t number = relay_pos_number(buf, state->position);
	*start_records = subbuf_at(buf, state->position).start_records;
	look.to.overwritten_records = 0;
	if (err || !say_packet(&walk, packet))
		return err;
	walk.until = number + 1;
	err = walk_data(&walk);
	*state = look.to;
	if (is_lapped(buf, walk.head, look.from.position) || relay_consume_stands(buf, number))
		return -EAGAIN;
	return err ? err : relay_pos_number(buf, look.to.position) == walk.until ? (int)walk.n_used : -EBADMSG;
}

int relay_consume_stands(struct rchan_buf *buf, uint64_t number)
{
	uint64_t head, second;
	/* The caller's loads of the data before this load of head. */
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	if (relay_head(buf, &head, &second))
		return -EBADMSG;
	return is_lapped(buf, head, relay_pos_start(buf, number)) ? -EOVERFLOW : 0;
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

int relay_consume_begin_behind(struct rchan_buf *buf, uint64_t skip, size_t max_bytes, struct relay_span *spans,
                               size_t n_spans, size_t *total, uint64_t *end)
{
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
	err = relay_consumer_read(buf, &buf->plan.from) ? plan(&walk) : -EBADMSG;
	/* The last holder may have died in the middle of publish(). */
	if (!err && __atomic_load_n(&buf->control->consumed, __ATOMIC_RELAXED) != buf->plan.from.position)
		publish(buf, &buf->plan.from);
	if (!err && walk.total) {
		buf->plan.to.reads++;
		buf->plan.active = true;
		*end = buf->plan.to.bytes;
		*total = walk.total;
		return (int)walk.n_used;
	}
	if (!err && !skip && memcmp(&buf->plan.to, &buf->plan.from, sizeof(buf->plan.to)) != 0)
		carry_out(buf); /* padding, holes and losses passed, nothing to give, nothing passed over */
	relay_reader_unlock(buf);
	return err;
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
	err = relay_consumer_read(buf, &buf->plan.from) ? plan(&walk) : -EBADMSG;
	if (!err)
		carry_out(buf);
	relay_reader_unlock(buf);
	return err;
}

/* A callback may be about to let the sub-buffer at `start` be overwritten. 1: it did, or that cannot be known. */
static int wait_for_callback(struct rchan_buf *buf, uint64_t start)
{
	sigset_t before;
	uint64_t head, second;
	if (relay_switch_lock(buf, &before))
		return 1;
	int lapped = relay_head(buf, &head, &second) || is_lapped(buf, head, start);
	relay_switch_unlock(buf, &before);
	return lapped;
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
	buf->plan = (struct relay_plan){0};
	err = relay_consumer_read(buf, &buf->plan.to) ? relay_consumer_catch_up(buf, &buf->plan.to) : -EBADMSG;
	if (!err)
		err = see_head(&walk);
	while (!err && n && pass_subbuf(&walk))
		n--;
	if (!err)
		carry_out(buf);
	relay_reader_unlock(buf);
	return err;
}
