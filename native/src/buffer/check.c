/* SPDX-License-Identifier: MIT */
/*
 * Checking a view of a buffer: relay_buf_check() of <relayfs/check_store.h>.
 *
 * Writers and readers continue meanwhile. Each word is compared with others that are loaded later and can then only have
 * grown, or is compared while a third word says that neither has changed. A false fault is still possible if a reader and a
 * writer pass each other twice between two loads; the next call does not find it again.
 */
#define _GNU_SOURCE
#include "base/faults.h"
#include "buffer/claims.h"
#include "buffer/consume.h"
#include "buffer/head.h"
#include "buffer/timed.h"
#include "buffer/walk.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* WALKS: calls that do RELAY_WORK each. LOOK_SPANS: the most pieces of data between holes in one sub-buffer. */
enum { WALKS = 1024, LOOK_SPANS = 1024, LOOK_TRIES = 16 };

/* The flags that a buffer can have. */
enum {
	KNOWN_FLAGS = RELAY_STOPPED | RELAY_ARMED | RELAY_FINALIZED | RELAY_SILENT | RELAY_UNALLOCATED | RELAY_LEFT,
};

struct check {
	struct rchan_buf *buf;
	struct relay_faults *faults;
	uint64_t control_at, claims_at; /* offsets in the file */
	uint64_t subbufs_at;
	uint32_t readers; /* relay_control.current, as loaded before `consumer` */
	struct relay_consumer consumer;
	uint64_t head, records; /* as loaded after `consumer` */
};

static uint64_t control_at(const struct check *check, size_t offset)
{
	return check->control_at + offset;
}

#define CONTROL(field) control_at(check, offsetof(struct relay_control, field))

static uint64_t entry_at(const struct check *check, uint64_t number, size_t offset)
{
	return check->subbufs_at + number % (2 * check->buf->n_subbufs) * sizeof(struct relay_subbuf) + offset;
}

static void note(const struct check *check)
{
	struct relay_damage *damage = &check->buf->damage;
	const uint64_t consumer =
	    CONTROL(consumer) + (check->buf->control->current & 1) * sizeof(struct relay_consumer);
	const uint64_t each = sizeof(struct relay_subbuf);
	const struct relay_fault_place places[] = {
	    {"relay_subbuf[].end", check->subbufs_at + offsetof(struct relay_subbuf, end), each},
	    {"relay_subbuf[].start_records", check->subbufs_at + offsetof(struct relay_subbuf, start_records), each},
	    {"relay_subbuf[].start_bytes", check->subbufs_at + offsetof(struct relay_subbuf, start_bytes), each},
	    {"relay_subbuf[].start_lost", check->subbufs_at + offsetof(struct relay_subbuf, start_lost), each},
	    {"relay_claim[]", check->claims_at, sizeof(struct relay_claim)},
	    {"relay_consumer.bytes", consumer + offsetof(struct relay_consumer, bytes), 0},
	    {"relay_consumer.records", consumer + offsetof(struct relay_consumer, records), 0},
	    {"relay_consumer.reads", consumer + offsetof(struct relay_consumer, reads), 0},
	    {"relay_consumer", consumer, 0},
	    {"the number of the consumer's sub-buffer", consumer, 0},
	    {"the consumer's distance", consumer, 0},
	    {"relay_geometry.magic", CONTROL(geometry.magic), 0},
	    {"relay_control.head", CONTROL(head), 0},
	    {"relay_control.lost_full", CONTROL(lost_full), 0},
	    {"relay_control.lost_disabled", CONTROL(lost_disabled), 0},
	    {"relay_control.lost_too_large", CONTROL(lost_too_large), 0},
	    {"relay_control.switch_time_ns", CONTROL(switch_time_ns), 0},
	    {NULL, check->control_at, 0},
	};
	if (damage->where && strncmp(damage->where, "relay_subbuf[]", strlen("relay_subbuf[]")) == 0)
		damage->index %= 2 * check->buf->n_subbufs;
	relay_fault_note(check->faults, damage, places);
}

/* True if a reader has moved since `consumer` was loaded: what it has passed may be overwritten. */
static bool has_read(const struct check *check)
{
	/* Pairs with the release in relay_consumer_publish(), as has_read_since() in buffer/stats.c. */
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return __atomic_load_n(&check->buf->control->current, __ATOMIC_RELAXED) != check->readers;
}

/* --- control page --- */

static void check_locks(const struct check *check)
{
	const struct relay_control *control = check->buf->control;
	/* Relaxed: nothing that the locks protect is loaded. */
	uint64_t reader = __atomic_load_n(&control->reader_lock, __ATOMIC_RELAXED);
	uint64_t switcher = __atomic_load_n(&control->switch_lock, __ATOMIC_RELAXED);
	uint64_t writer = __atomic_load_n(&control->write_lock, __ATOMIC_RELAXED);
	relay_fault_dead(check->faults, CONTROL(reader_lock), reader, "relay_control.reader_lock",
	                 "the next reader takes it");
	relay_fault_dead(check->faults, CONTROL(switch_lock), switcher, "relay_control.switch_lock",
	                 "the next writer takes it");
	relay_fault_dead(check->faults, CONTROL(write_lock), writer, "relay_control.write_lock",
	                 "the next writer takes it");
}

/* Compare words of the control page. Returns false if a reset is under way: nothing else can be checked then. */
static bool check_control(const struct check *check)
{
	const struct relay_control *control = check->buf->control;
	uint32_t flags = __atomic_load_n(&control->flags, __ATOMIC_ACQUIRE);
	uint32_t n_used = __atomic_load_n(&control->n_claims_used, __ATOMIC_RELAXED);
	/* Pairs with start_again() in buffer/control.c. */
	uint32_t resets = __atomic_load_n(&control->resets, __ATOMIC_ACQUIRE);
	relay_fault_bits(check->faults, CONTROL(flags), flags, "relay_control.flags", KNOWN_FLAGS);
	relay_fault_above(check->faults, CONTROL(n_claims_used), n_used, "relay_control.n_claims_used", RELAY_N_CLAIMS);
	uint64_t owner = __atomic_load_n(&control->reader_lock, __ATOMIC_RELAXED);
	if (resets & 1 && (!owner || !relay_owner_alive(owner)))
		relay_fault_left(check->faults, CONTROL(resets), resets, "relay_control.resets",
		                 "it is odd: a process has died during a reset, and writers are refused until another "
		                 "reset is complete");
	return !(resets & 1);
}

/* --- claims --- */

static uint64_t claim_at(const struct check *check, uint32_t i, size_t offset)
{
	return check->claims_at + i * sizeof(struct relay_claim) + offset;
}

/* Check a claim that is TAKEN or a hole. */
static void check_claimed(const struct check *check, uint32_t i, const struct relay_claim *seen)
{
	const struct rchan_buf *buf = check->buf;
	char name[RELAY_FAULT_NAME_BYTES];
	uint64_t pos = seen->word & RELAY_POSITION_MASK, head, second;
	bool is_taken = (seen->word & RELAY_CLAIM_STATE) == RELAY_CLAIM_TAKEN;
	bool is_switch = seen->length == RELAY_CLAIM_SWITCH;
	uint64_t left = buf->subbuf_size - relay_pos_offset(buf, pos);
	snprintf(name, sizeof(name), "relay_claim[%u].length", i);
	if (!is_switch && (seen->length == 0 || seen->length > left))
		relay_fault_value(check->faults, claim_at(check, i, offsetof(struct relay_claim, length)), seen->length,
		                  name, "1 to %" PRIu64 ", the rest of its sub-buffer", left);
	snprintf(name, sizeof(name), "relay_claim[%u].bytes", i);
	if (!is_switch && seen->length && seen->bytes >> RELAY_CLAIM_MORE_SHIFT >= seen->length)
		relay_fault_value(check->faults, claim_at(check, i, offsetof(struct relay_claim, bytes)), seen->bytes,
		                  name, "less than %" PRIu64 ", as no record is empty",
		                  seen->length << RELAY_CLAIM_MORE_SHIFT);
	snprintf(name, sizeof(name), "relay_claim[%u].word", i);
	/* Loaded after the claim, so that it is behind what was reserved. */
	if (!relay_head(buf, &head, &second) && pos > head)
		relay_fault_value(check->faults, claim_at(check, i, 0), seen->word, name,
		                  "a position, in its lower 62 bits, of at most %" PRIu64, head);
	snprintf(name, sizeof(name), "relay_claim[%u].owner.thread", i);
	if (is_taken)
		relay_fault_dead(check->faults, claim_at(check, i, offsetof(struct relay_claim, owner.thread)),
		                 seen->owner.thread, name,
		                 is_switch
		                     ? "it died in a switch of sub-buffers; the next reader or writer completes it"
		                     : "it has not committed what it reserved there; the next reader that comes "
		                       "there counts it as torn");
}

static void check_claim(const struct check *check, uint32_t i)
{
	const struct rchan_buf *buf = check->buf;
	const struct relay_claim *claim = &buf->claims[i];
	char name[RELAY_FAULT_NAME_BYTES];
	/* Pairs with relay_claim_state(): the fields before the word. */
	struct relay_claim seen = {.word = __atomic_load_n(&claim->word, __ATOMIC_ACQUIRE)};
	seen.length = __atomic_load_n(&claim->length, __ATOMIC_RELAXED);
	seen.bytes = __atomic_load_n(&claim->bytes, __ATOMIC_RELAXED);
	seen.owner.thread = __atomic_load_n(&claim->owner.thread, __ATOMIC_RELAXED);
	uint64_t in_use = __atomic_load_n(&claim->owner.in_use, __ATOMIC_RELAXED);
	/* Keeps the loads above before the next ones. */
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	if (__atomic_load_n(&claim->word, __ATOMIC_RELAXED) != seen.word)
		return;
	uint64_t state = seen.word & RELAY_CLAIM_STATE;
	uint32_t n_used = __atomic_load_n(&buf->control->n_claims_used, __ATOMIC_RELAXED);
	snprintf(name, sizeof(name), "relay_claim[%u].owner.in_use", i);
	if (in_use > 1)
		relay_fault_value(check->faults, claim_at(check, i, offsetof(struct relay_claim, owner.in_use)), in_use,
		                  name, "0 or 1");
	snprintf(name, sizeof(name), "relay_claim[%u].word", i);
	if (seen.word && i >= n_used)
		relay_fault_value(check->faults, claim_at(check, i, 0), seen.word, name,
		                  "0, as only claims below n_claims_used, %u, were ever taken", n_used);
	else if (seen.word && (!state || !relay_pos_valid(buf, seen.word)))
		relay_fault_value(check->faults, claim_at(check, i, 0), seen.word, name,
		                  "0, or a state in its upper 2 bits and a position in sub-buffers of %" PRIu64
		                  " bytes",
		                  buf->subbuf_size);
	else if (state == RELAY_CLAIM_TAKEN || state == RELAY_CLAIM_HOLE)
		check_claimed(check, i, &seen);
}

/* --- the entries of sub-buffers --- */

/* True if the entries of sub-buffer `number` and the next one may have been used again since they were loaded. */
static bool is_entry_old(const struct rchan_buf *buf, uint64_t number)
{
	uint64_t head, second;
	/* Keeps the loads of the entries before the load of head. Pairs with switch_subbuf() in buffer/try_reserve.c. */
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return relay_head(buf, &head, &second) || relay_pos_number(buf, head) - number >= buf->n_subbufs;
}

/* Check the entry of a finished sub-buffer against that of the next. Returns false if writers have come around, or after
 * a fault. */
static bool check_finished(const struct check *check, uint64_t number)
{
	const struct rchan_buf *buf = check->buf;
	uint64_t start = relay_pos_start(buf, number), index = number % (2 * buf->n_subbufs);
	uint64_t next_index = (number + 1) % (2 * buf->n_subbufs);
	struct relay_subbuf entry = relay_subbuf_at(buf, start);
	struct relay_subbuf next = relay_subbuf_at(buf, relay_pos_start(buf, number + 1));
	char name[RELAY_FAULT_NAME_BYTES];
	if (is_entry_old(buf, number))
		return false;
	uint64_t length = entry.end - start;
	if (entry.end < start || length > buf->subbuf_size) {
		snprintf(name, sizeof(name), "relay_subbuf[%" PRIu64 "].end", index);
		relay_fault_value(check->faults, entry_at(check, number, offsetof(struct relay_subbuf, end)), entry.end,
		                  name, "%" PRIu64 " to %" PRIu64 ", a position in sub-buffer %" PRIu64, start,
		                  start + buf->subbuf_size, number);
		return false;
	}
	if (next.start_bytes != entry.start_bytes + length) {
		snprintf(name, sizeof(name), "relay_subbuf[%" PRIu64 "].start_bytes", next_index);
		relay_fault_value(check->faults,
		                  entry_at(check, number + 1, offsetof(struct relay_subbuf, start_bytes)),
		                  next.start_bytes, name, "%" PRIu64 ", as sub-buffer %" PRIu64 " ends there",
		                  entry.start_bytes + length, number);
		return false;
	}
	if (next.start_records < entry.start_records || next.start_records > check->records) {
		snprintf(name, sizeof(name), "relay_subbuf[%" PRIu64 "].start_records", next_index);
		relay_fault_value(
		    check->faults, entry_at(check, number + 1, offsetof(struct relay_subbuf, start_records)),
		    next.start_records, name, "%" PRIu64 " to %" PRIu64 ", the records before it and in all",
		    entry.start_records, check->records);
		return false;
	}
	return true;
}

/* Check the consumer's state against the entry of the sub-buffer where it is. */
static void check_consumer(const struct check *check)
{
	const struct rchan_buf *buf = check->buf;
	const struct relay_consumer *consumer = &check->consumer;
	uint64_t number = relay_pos_number(buf, consumer->position), offset = relay_pos_offset(buf, consumer->position);
	const uint64_t at = CONTROL(consumer) + (check->readers & 1) * sizeof(struct relay_consumer);
	uint64_t consumed = __atomic_load_n(&buf->control->consumed, __ATOMIC_ACQUIRE);
	uint64_t owner = __atomic_load_n(&buf->control->reader_lock, __ATOMIC_RELAXED);
	struct relay_subbuf entry = relay_subbuf_at(buf, consumer->position);
	bool is_old = is_entry_old(buf, number);
	if (has_read(check))
		return;
	if (consumed != consumer->position && !owner)
		relay_fault_value(check->faults, CONTROL(consumed), consumed, "relay_control.consumed",
		                  "%" PRIu64 ", as relay_consumer.position", consumer->position);
	if (!is_old && consumer->bytes != entry.start_bytes + offset)
		relay_fault_value(check->faults, at + offsetof(struct relay_consumer, bytes), consumer->bytes,
		                  "relay_consumer.bytes", "%" PRIu64 ", by its position", entry.start_bytes + offset);
	if (!is_old &&
	    (consumer->records < entry.start_records || (!offset && consumer->records != entry.start_records)))
		relay_fault_value(check->faults, at + offsetof(struct relay_consumer, records), consumer->records,
		                  "relay_consumer.records", "%s %" PRIu64 ", by its position",
		                  offset ? "at least" : "only", entry.start_records);
}

/* The first sub-buffer whose entry is not used again before head has moved on. */
static uint64_t first_number(const struct check *check)
{
	const struct rchan_buf *buf = check->buf;
	uint64_t head = relay_pos_number(buf, check->head), consumed = relay_pos_number(buf, check->consumer.position);
	uint64_t oldest = head < buf->n_subbufs ? 0 : head - buf->n_subbufs + 1;
	return consumed > oldest ? consumed : oldest;
}

static void check_entries(const struct check *check)
{
	const struct rchan_buf *buf = check->buf;
	uint64_t produced = relay_produced(buf, check->head);
	for (uint64_t number = first_number(check); number < produced; number++)
		if (!check_finished(check, number))
			return;
}

/* --- the data --- */

/* Walk from the consumer to head. Returns 0 or -EAGAIN. */
static int walk_data(const struct check *check)
{
	struct rchan_buf *buf = check->buf;
	struct relay_plan plan = {.from = check->consumer};
	int err = -EINPROGRESS;
	pthread_mutex_lock(&buf->walking);
	for (int i = 0; err == -EINPROGRESS && i < WALKS; i++) {
		struct relay_walk walk = {
		    .buf = buf, .plan = &plan, .n_spans = SIZE_MAX, .max_bytes = SIZE_MAX, .holes = &buf->holes_ahead};
		relay_work_begin(buf);
		err = relay_walk_plan(&walk);
		plan.from = plan.to;
	}
	pthread_mutex_unlock(&buf->walking);
	if (err == -EBADMSG && has_read(check))
		relay_damage_forget(&buf->damage);
	else if (err == -EBADMSG)
		note(check);
	return err == -EINPROGRESS ? -EAGAIN : 0;
}

/* Check the heads of a finished sub-buffer's records, and count them. Returns 0; -EOVERFLOW: it was overwritten; -E2BIG: it
 * has more than LOOK_SPANS pieces; -EINPROGRESS: its holes could not be found. */
static int check_heads(const struct check *check, uint64_t number)
{
	struct rchan_buf *buf = check->buf;
	struct relay_span spans[LOOK_SPANS];
	struct relay_consumer state = {.position = relay_pos_start(buf, number)};
	uint64_t first = 0, n_heads = 0;
	int n = -EAGAIN;
	for (int i = 0; (n == -EAGAIN || n == -EINPROGRESS) && i < LOOK_TRIES; i++) {
		state = (struct relay_consumer){.position = relay_pos_start(buf, number)};
		n = relay_consume_look(buf, &state, NULL, &first, spans, LOOK_SPANS);
	}
	bool is_damaged = n == -EBADMSG && buf->damage.where;
	relay_damage_forget(&buf->damage); /* walk_data() has noted it */
	for (int i = 0; i < n; i++) {
		uint64_t in_span;
		size_t good = relay_timed_whole(&spans[i], &in_span);
		uint64_t at = (uint64_t)((const unsigned char *)spans[i].data - buf->data) + good;
		n_heads += in_span;
		if (good == spans[i].length)
			continue;
		if (relay_consume_stands(buf, number) || has_read(check))
			return -EOVERFLOW;
		uint32_t value = 0;
		size_t left = spans[i].length - good;
		memcpy(&value, buf->data + at, left < sizeof(value) ? left : sizeof(value));
		relay_fault_value(check->faults, at, value, "relay_timed_head of a record",
		                  "%u, and a length within sub-buffer %" PRIu64, RELAY_TRACE_EXTENDED, number);
		return 0;
	}
	/* A reader that passes holes frees their claims. */
	if (n == -EAGAIN || relay_consume_stands(buf, number) || has_read(check))
		return -EOVERFLOW;
	if (n == -EBADMSG && !is_damaged)
		return -E2BIG;
	if (n <= 0)
		return n == -EINPROGRESS ? n : 0;
	uint64_t all = state.records - first, counted = n_heads + state.torn_records + state.discarded_records;
	if (all != counted)
		relay_fault_value(check->faults,
		                  entry_at(check, number + 1, offsetof(struct relay_subbuf, start_records)),
		                  state.records, "relay_subbuf[].start_records",
		                  "%" PRIu64 ", by the records in sub-buffer %" PRIu64, first + counted, number);
	return 0;
}

/* The records of buffers with `times` can be told apart, so they can be counted. Returns 0; -EAGAIN: not all were. */
static int count_records(const struct check *check)
{
	const struct rchan_buf *buf = check->buf;
	uint64_t produced = relay_produced(buf, check->head), number = first_number(check);
	/* A consumer frees the claims of the holes that it passes. */
	if (number < relay_first_untouched(buf, &check->consumer))
		number = relay_first_untouched(buf, &check->consumer);
	bool is_cut = false;
	for (int err = 0; number < produced && (!err || err == -E2BIG); number++) {
		err = check_heads(check, number);
		is_cut |= err == -E2BIG || err == -EINPROGRESS;
	}
	return is_cut ? -EAGAIN : 0;
}

/* Check all, after check_control(). Returns 0 or -EAGAIN. */
static int check_all(struct check *check)
{
	struct rchan_buf *buf = check->buf;
	struct relay_stats stats;
	/* Relaxed: relay_consumer_read() loads it again with acquire before the state. */
	check->readers = __atomic_load_n(&buf->control->current, __ATOMIC_RELAXED);
	/* The consumer is loaded before head, which cannot be behind it then. */
	if (relay_consumer_read(buf, &check->consumer) || relay_settled_head(buf, &check->head, &check->records)) {
		note(check);
		return 0;
	}
	for (uint32_t i = 0; i < RELAY_N_CLAIMS; i++)
		check_claim(check, i);
	int err = relay_buf_stats(buf, &stats);
	if (err == -EBADMSG)
		note(check);
	if (err)
		return err == -EBADMSG ? 0 : -EAGAIN;
	check_consumer(check);
	check_entries(check);
	err = walk_data(check);
	int uncounted = buf->is_timed ? count_records(check) : 0;
	return err ? err : uncounted;
}

int relay_buf_check(struct rchan_buf *buf, struct relay_faults *faults)
{
	uint64_t control = buf->mapping.bytes - RELAY_PAGE_BYTES;
	struct check check = {.buf = buf,
	                      .faults = faults,
	                      .control_at = control,
	                      .claims_at = (uint64_t)((unsigned char *)buf->claims - buf->data),
	                      .subbufs_at = (uint64_t)((unsigned char *)buf->subbufs - buf->data)};
	/* Pairs with start_again() in buffer/control.c: all changes by the last reset are seen. */
	uint32_t resets = __atomic_load_n(&buf->control->resets, __ATOMIC_ACQUIRE);
	uint32_t n = faults->n, n_more = faults->n_more;
	check_locks(&check);
	if (!check_control(&check))
		return -EAGAIN;
	int err = check_all(&check);
	/* Pairs with the fence in start_again(): if a change by a reset was seen, the odd number is seen now. */
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	if (__atomic_load_n(&buf->control->resets, __ATOMIC_RELAXED) == resets)
		return err;
	faults->n = n;
	faults->n_more = n_more;
	return -EAGAIN;
}
