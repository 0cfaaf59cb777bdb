/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "buffer/walk.h"

#include "buffer/consumer.h"
#include "buffer/holes.h"

enum { WHOLE_PIECES_BYTES = 4096 };

/* Calls of relay_walk_pass_subbuf() for one sub-buffer, each of which collects some of its holes. */
enum { HOLES_TRIES = 32 };

/* Costs in units of buf->work: one unit for CLAIMS_A_UNIT claims examined; REAP_UNITS for relay_claim_reap(),
 * which makes system calls. */
enum { CLAIMS_A_UNIT = 4, REAP_UNITS = 512 };

/* The data from the walk's position to the next hole, open reservation or end in this sub-buffer. */
struct stretch {
	uint64_t end;                 /* offset */
	uint64_t end_records;         /* record number at `end` */
	struct relay_claim_view stop; /* the claim at `end`, TAKEN or a hole; or none */
	uint64_t discarded;           /* the length of a hole at `end` that has no claim; 0: none */
	bool finished;                /* `end` is the end of a finished sub-buffer */
};

/*
 * The first claim that is TAKEN or a hole at or after pos. Records before it are committed and cannot be discarded any
 * more. So the list of holes, which is loaded afterwards, is complete up to there, and the result is used again for
 * later positions before the claim.
 */
static struct relay_claim_view first_claim(struct relay_walk *walk, uint64_t pos)
{
	struct rchan_buf *buf = walk->buf;
	bool is_known = walk->is_searched && pos >= walk->searched_from &&
	                relay_pos_number(buf, pos) == relay_pos_number(buf, walk->searched_from) &&
	                (!walk->stop.claim || pos <= (walk->stop.word & RELAY_POSITION_MASK));
	if (!is_known) {
		walk->stop = relay_claims_first(buf, pos);
		walk->searched_from = pos;
		walk->is_searched = true;
		relay_work_add(buf, 1 + relay_claims_n_used(buf) / CLAIMS_A_UNIT);
	}
	return walk->stop;
}

/* Find the end of a finished sub-buffer. Returns 0 or -EBADMSG. */
static int find_end(struct relay_walk *walk, struct stretch *stretch, const struct relay_subbuf *subbuf)
{
	struct rchan_buf *buf = walk->buf;
	uint64_t pos = walk->plan->to.position, next = relay_pos_next(buf, pos);
	stretch->finished = true;
	if (relay_pos_number(buf, subbuf->end) != relay_pos_number(buf, pos) ||
	    relay_pos_offset(buf, subbuf->end) > buf->subbuf_size)
		return relay_damage_note(&buf->damage, "relay_subbuf[].end", relay_pos_entry_index(buf, pos),
		                         subbuf->end, "not a position in sub-buffer", relay_pos_number(buf, pos));
	stretch->end = relay_pos_offset(buf, subbuf->end);
	stretch->end_records = relay_subbuf_at(buf, next).start_records;
	return relay_damage_above(&buf->damage, "relay_subbuf[].start_records", relay_pos_entry_index(buf, next),
	                          stretch->end_records, walk->head_records);
}

static int find_stretch(struct relay_walk *walk, struct stretch *stretch)
{
	struct rchan_buf *buf = walk->buf;
	const struct relay_consumer *to = &walk->plan->to;
	uint64_t pos = to->position;
	*stretch = (struct stretch){.end = relay_pos_offset(buf, walk->head), .end_records = walk->head_records};
	struct relay_subbuf subbuf = relay_subbuf_at(buf, pos);
	bool finished = relay_pos_number(buf, pos) != relay_pos_number(buf, walk->head);
	if (finished && find_end(walk, stretch, &subbuf))
		return -EBADMSG;
	if (relay_damage_below(&buf->damage, "the end of the data, an offset,", 0, stretch->end,
	                       relay_pos_offset(buf, pos)) ||
	    relay_damage_above(&buf->damage, "relay_subbuf[].start_records", relay_pos_entry_index(buf, pos),
	                       subbuf.start_records, stretch->end_records))
		return -EBADMSG;
	stretch->stop = first_claim(walk, pos);
	if (stretch->stop.claim && relay_pos_offset(buf, stretch->stop.word) < stretch->end) {
		uint64_t claim = (uint64_t)(stretch->stop.claim - buf->claims);
		if (stretch->stop.records >= stretch->end_records)
			return relay_damage_note(&buf->damage, "relay_claim[].records", claim, stretch->stop.records,
			                         "not less than", stretch->end_records);
		if (relay_damage_above(&buf->damage, "relay_claim[].bytes, a number of records,", claim,
		                       stretch->stop.n_records, stretch->end_records - stretch->stop.records))
			return -EBADMSG;
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

/* Move the walk past the hole at the stretch's end, and count it as torn or discarded. Returns 0 or -EBADMSG. */
static int pass_hole(struct relay_walk *walk, const struct stretch *stretch)
{
	struct relay_consumer *to = &walk->plan->to;
	uint64_t length = stretch->discarded ? stretch->discarded : stretch->stop.length;
	uint64_t n_records = stretch->discarded ? 1 : stretch->stop.n_records;
	if (length == 0 || length > walk->buf->subbuf_size - stretch->end)
		return relay_damage_note(&walk->buf->damage, "the length of a hole", 0, length,
		                         "not 1 or more and at most", walk->buf->subbuf_size - stretch->end);
	if (!stretch->discarded) {
		ptrdiff_t claim = stretch->stop.claim - walk->buf->claims;
		walk->plan->holes[claim / 64] |= 1ull << claim % 64;
	}
	bool torn = !stretch->discarded && !stretch->stop.discarded;
	*(torn ? &to->torn_records : &to->discarded_records) += n_records;
	*(torn ? &to->torn_bytes : &to->discarded_bytes) += length;
	to->position += length;
	to->bytes += length;
	to->records = stretch->end_records + n_records;
	return 0;
}

/* Move `to` on by `length` bytes of the stretch; whole: to its end. */
static void advance(struct relay_consumer *to, const struct stretch *stretch, uint64_t length, bool whole)
{
	to->position += length;
	to->bytes += length;
	if (whole)
		to->records = stretch->end_records;
}

/* Skip the stretch or add it to the spans, as a whole or in part. Returns false if no span or byte is left for it. */
static bool take_stretch(struct relay_walk *walk, const struct stretch *stretch)
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
	/* In overwrite mode, the rest of a stretch that is read in part may be overwritten, which loses the end of a
	 * record. So a reader of blocks gets whole stretches only, except for the first. A reader that asks for
	 * fewer than WHOLE_PIECES_BYTES gets as many as it asks for, as in the kernel. */
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

/* The walk has reached an open reservation, `claim`. Returns true if its owner was dead and the claim was reaped, so
 * that the walk can continue. */
static bool reap_stop(struct relay_walk *walk, struct relay_claim *claim)
{
	/* Checked only if the walk has found no data before, because it makes system calls. */
	if (walk->total && !walk->until)
		return false;
	relay_work_add(walk->buf, REAP_UNITS);
	walk->is_searched = false;
	return relay_claim_reap(walk->buf, claim);
}

int relay_walk_data(struct relay_walk *walk)
{
	struct rchan_buf *buf = walk->buf;
	struct relay_consumer *to = &walk->plan->to;
	for (; buf->work; relay_work_add(buf, 1)) {
		struct stretch stretch;
		int err = find_stretch(walk, &stretch);
		if (err)
			return err;
		if (stretch.end > relay_pos_offset(buf, to->position)) {
			if (!take_stretch(walk, &stretch))
				return 0;
		} else if (stretch.discarded ||
		           (stretch.stop.claim && (stretch.stop.word & RELAY_CLAIM_STATE) == RELAY_CLAIM_HOLE)) {
			err = pass_hole(walk, &stretch);
			if (err)
				return err;
		} else if (stretch.stop.claim) {
			if (!reap_stop(walk, stretch.stop.claim))
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

int relay_walk_pass_subbuf(struct relay_walk *walk)
{
	struct rchan_buf *buf = walk->buf;
	struct relay_plan before = *walk->plan;
	uint64_t number = relay_pos_number(buf, before.to.position);
	uint32_t left = buf->work;
	int err = left ? 0 : -EINPROGRESS;
	walk->until = number + 1;
	if (!err && number < walk->produced) {
		buf->work = RELAY_WORK_SUBBUF;
		err = relay_walk_data(walk);
		uint32_t used = RELAY_WORK_SUBBUF - buf->work;
		buf->work = used < left ? left - used : 0;
		if (!err && relay_pos_number(buf, walk->plan->to.position) == walk->until)
			return 1;
	}
	*walk->plan = before;
	return err;
}

int relay_walk_say_packet(struct relay_walk *walk, struct relay_packet *packet)
{
	struct relay_plan plan = *walk->plan;
	struct relay_walk whole = {.buf = walk->buf,
	                           .plan = &plan,
	                           .head = walk->head,
	                           .head_records = walk->head_records,
	                           .produced = walk->produced,
	                           .holes = walk->holes,
	                           .n_spans = SIZE_MAX,
	                           .max_bytes = SIZE_MAX};
	uint64_t pos = plan.to.position;
	int result = relay_walk_pass_subbuf(&whole);
	if (result != 1 || !packet)
		return result;
	return relay_packet_say(walk->buf, packet, relay_pos_number(walk->buf, pos), walk->head,
	                        relay_pos_offset(walk->buf, pos) + whole.total,
	                        plan.to.overwritten_records + plan.to.torn_records);
}

/* As relay_walk_data(), for a format with packets: each finished sub-buffer, with its header. */
static int walk_packets(struct relay_walk *walk)
{
	struct rchan_buf *buf = walk->buf;
	struct relay_consumer *to = &walk->plan->to;
	for (size_t n = 0; !walk->packets || n < RELAY_N_PACKETS; n++) {
		walk->packet = walk->packets && relay_pos_offset(buf, to->position) < sizeof(*walk->packet)
		                   ? &walk->packets[n]
		                   : NULL;
		int result = relay_walk_say_packet(walk, walk->packet);
		if (result != 1)
			return result;
		walk->until = relay_pos_number(buf, to->position) + 1;
		uint32_t left = buf->work;
		/* relay_walk_say_packet() has walked this sub-buffer and has used units of work for it. The second
		 * walk has the same limit and uses none, because it must not stop in the middle of a packet. */
		buf->work = RELAY_WORK_SUBBUF;
		int err = relay_walk_data(walk);
		buf->work = left;
		if (err || relay_pos_number(buf, to->position) != walk->until)
			return err;
	}
	return 0;
}

/* As relay_walk_data(): pass the next walk->n_subbufs sub-buffers, or those before the first that is not finished or
 * has an open reservation. buf->work begins anew for each of them, because the caller limits their number. */
static int pass_subbufs(struct relay_walk *walk)
{
	uint64_t left = walk->n_subbufs;
	for (int tries = 0; left && tries < HOLES_TRIES; tries++) {
		relay_work_begin(walk->buf);
		int result = relay_walk_pass_subbuf(walk);
		if (result == 0 || result == -EBADMSG)
			return result;
		if (result == 1) {
			left--;
			tries = -1;
		}
	}
	return 0;
}

int relay_walk_see_head(struct relay_walk *walk)
{
	int err = relay_settled_head(walk->buf, &walk->head, &walk->head_records);
	/* `produced` is computed before entries are read, because only the end of a finished sub-buffer is final. */
	if (!err)
		walk->produced = relay_produced(walk->buf, walk->head);
	return err;
}

/*
 * Load head, and begin at the data that are not overwritten. In mode no-overwrite, in which nothing is, head is loaded
 * only once for a walk, because each load may move its cache line away from the CPU of a writer. Returns 0 or -EBADMSG.
 */
static int start_walk(struct relay_walk *walk)
{
	struct rchan_buf *buf = walk->buf;
	struct relay_consumer *to = &walk->plan->to;
	bool is_kept = buf->mode == RELAY_NO_OVERWRITE;
	if (!is_kept && relay_consumer_catch_up(buf, to))
		return -EBADMSG;
	int err = relay_walk_see_head(walk);
	walk->plan->start = to->position;
	walk->plan->head = walk->head;
	return err || !is_kept ? err : relay_consumer_check_distance(buf, walk->head, to->position);
}

int relay_walk_plan(struct relay_walk *walk)
{
	struct rchan_buf *buf = walk->buf;
	struct relay_consumer from = walk->plan->from;
	for (int i = 0; i < RELAY_LAPPED_TRIES; i++) {
		*walk->plan = (struct relay_plan){.from = from, .to = from};
		walk->n_used = 0;
		walk->total = 0;
		walk->passed = 0;
		walk->is_searched = false;
		uint64_t again, records;
		int err = start_walk(walk);
		if (err)
			return err;
		uint64_t start = walk->plan->start;
		if (!relay_consumer_is_lapped(buf, walk->head, start))
			err = walk->n_subbufs ? pass_subbufs(walk)
			      : buf->packets  ? walk_packets(walk)
			                      : relay_walk_data(walk);
		/* Keeps the loads of the data before the load of head below. Pairs with switch_subbuf() in
		 * buffer/try_reserve.c, which changes head before anything is overwritten. */
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		if (relay_settled_head(buf, &again, &records))
			return -EBADMSG;
		if (!relay_consumer_is_lapped(buf, again, start))
			return err;
		relay_damage_forget(&buf->damage);
		if (!buf->work)
			break;
	}
	/* The walk was lapped at each try, by fast writers with small sub-buffers, or by a
	 * program that damages head. */
	*walk->plan = (struct relay_plan){.from = from, .to = from};
	walk->n_used = 0;
	walk->total = 0;
	return -EINPROGRESS;
}
