/* SPDX-License-Identifier: MIT */
/* The consumer's state, and the reader lock. The state is kept in two copies, so that after a reader was killed
 * while it stored one of them, the other is valid. */
#define _GNU_SOURCE
#include "buffer/consumer.h"

#include "buffer/claims.h"
#include "buffer/head.h"

/* A try fails only if another thread has consumed during it. */
enum { READ_TRIES = 100 };

/* The dead holder of the reader lock may have been in relay_buf_reset(). If `resets` is even, it had cleared
 * nothing, so RELAY_RESETTING is cleared. If `resets` is odd, the buffer is half cleared, and the flag stays to
 * refuse writers until another reset is complete. */
static void end_reset(struct rchan_buf *buf)
{
	/* The load pairs with start_again() in buffer/control.c, the change of the flags with
	 * wait_or_refuse() in buffer/try_reserve.c. */
	if (!(__atomic_load_n(&buf->control->resets, __ATOMIC_ACQUIRE) & 1))
		__atomic_fetch_and(&buf->control->flags, ~(uint32_t)RELAY_RESETTING, __ATOMIC_SEQ_CST);
}

int relay_reader_lock(struct rchan_buf *buf)
{
	int result = relay_owner_lock(&buf->control->reader_lock, relay_owner_self());
	if (result == 1)
		end_reset(buf);
	return result < 0 ? result : 0;
}

bool relay_reader_is_held(const struct rchan_buf *buf)
{
	return relay_owner_lock_is_held(&buf->control->reader_lock);
}

/* True if the sum of the parts is at most the whole, without overflow. */
static bool fit(uint64_t whole, uint64_t part1, uint64_t part2, uint64_t part3)
{
	return part1 <= whole && part2 <= whole - part1 && part3 <= whole - part1 - part2;
}

/* Check the fields of a state against each other. */
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
		/* Pairs with the release in relay_consumer_publish() in buffer/consumer.h:
		 * the copy before `current`. */
		uint32_t current = __atomic_load_n(&control->current, __ATOMIC_ACQUIRE);
		*state = control->consumer[current & 1];
		/* Pairs with the release fence in relay_consumer_publish(): if a later store to this copy was
		 * loaded, the load below sees a later `current`. */
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		if (__atomic_load_n(&control->current, __ATOMIC_RELAXED) == current)
			return check_state(buf, state);
	}
	return relay_damage_say(&buf->damage, "relay_control.current keeps changing");
}

void relay_consumer_clear(struct rchan_buf *buf)
{
	relay_consumer_publish(buf, &(struct relay_consumer){0});
}

int relay_settled_head(struct rchan_buf *buf, uint64_t *head, uint64_t *records)
{
	uint64_t second;
	if (relay_head_checked(buf, head, &second))
		return -EBADMSG;
	relay_claims_help(buf, *head, second);
	*records = second & RELAY_RECORDS_MASK;
	return 0;
}

/* Count the data from `state` to the start of sub-buffer `oldest`, whose entry is `subbuf`, as overwritten, and move
 * `state` there. */
static int pass_overwritten(struct rchan_buf *buf, struct relay_consumer *state, uint64_t oldest,
                            const struct relay_subbuf *subbuf)
{
	uint64_t index = relay_pos_entry_index(buf, oldest);
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

int relay_consumer_check_distance(struct rchan_buf *buf, uint64_t head, uint64_t pos)
{
	return relay_damage_above(&buf->damage, "the consumer's distance from head, in sub-buffers,", 0,
	                          relay_pos_ahead(buf, head, pos), buf->n_subbufs);
}

int relay_consumer_catch_up(struct rchan_buf *buf, struct relay_consumer *state)
{
	for (int i = 0; i < RELAY_LAPPED_TRIES; i++) {
		uint64_t head, records, again;
		if (relay_settled_head(buf, &head, &records))
			return -EBADMSG;
		if (!relay_consumer_is_lapped(buf, head, state->position))
			return relay_consumer_check_distance(buf, head, state->position);
		uint64_t oldest = relay_pos_start(buf, relay_oldest(buf, head));
		struct relay_subbuf subbuf = relay_subbuf_at(buf, oldest);
		/* Keeps the loads of the entry before the load of head below. Pairs with switch_subbuf() in
		 * buffer/try_reserve.c, which changes head before the entry is used again. */
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		if (relay_settled_head(buf, &again, &records))
			return -EBADMSG;
		if (!relay_consumer_is_lapped(buf, again, oldest)) /* otherwise the entry may be that of a later lap */
			return pass_overwritten(buf, state, oldest, &subbuf);
	}
	return relay_damage_say(&buf->damage, "relay_control.head keeps changing");
}

bool relay_consumer_is_lapped_now(const struct rchan_buf *buf, uint64_t pos)
{
	uint64_t head, second;
	return !relay_head(buf, &head, &second) && relay_consumer_is_lapped(buf, head, pos);
}
