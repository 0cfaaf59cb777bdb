/* SPDX-License-Identifier: MIT */
/* The state of a buffer's consumer (struct relay_consumer), the lock under which it changes, and whether writers
 * have overwritten its data. */
#ifndef RELAYFS_BUFFER_CONSUMER_H
#define RELAYFS_BUFFER_CONSUMER_H

#include "base/owner_lock.h"
#include "buffer/subbuf_start.h"

/* How often to try again when writers have lapped the reader during a try. */
enum { RELAY_LAPPED_TRIES = 1000 };

/* Take the reader lock. Returns 0, also if the lock was a dead thread's; -EBUSY: a living thread has it. */
int relay_reader_lock(struct rchan_buf *buf);

static inline void relay_reader_unlock(struct rchan_buf *buf)
{
	relay_owner_unlock(&buf->control->reader_lock, relay_owner_self());
}

/* True if a living thread other than the caller has the reader lock. */
bool relay_reader_is_held(const struct rchan_buf *buf);

/* Copy the consumer's state to *state and check each field against the others. 0 or -EBADMSG. */
int relay_consumer_read(struct rchan_buf *buf, struct relay_consumer *state);

/* Store `state` as the consumer's state. The caller has the reader lock. */
static inline void relay_consumer_publish(struct rchan_buf *buf, const struct relay_consumer *state)
{
	struct relay_control *control = buf->control;
	/* Relaxed: only the holder of the reader lock changes `current`. */
	uint32_t next = __atomic_load_n(&control->current, __ATOMIC_RELAXED) + 1;
	/* Pairs with the acquire fence in relay_consumer_read(): a thread that sees a store to the copy sees the
	 * last `current`, which says that the copy is not valid. */
	__atomic_thread_fence(__ATOMIC_RELEASE);
	control->consumer[next & 1] = *state;
	/* Pairs with the acquire in relay_consumer_read(): the copy before `current`. */
	__atomic_store_n(&control->current, next, __ATOMIC_RELEASE);
	/* Pairs with the acquire in relay_has_left(): this thread's loads of the data before the writers'
	 * stores to the same memory. */
	__atomic_store_n(&control->consumed, state->position, __ATOMIC_RELEASE);
}

/* Store the state of a new buffer. The caller has the reader lock. */
void relay_consumer_clear(struct rchan_buf *buf);

/* Check that a consumer at pos, whose data are not overwritten, is at most a lap behind head. Returns 0 or -EBADMSG. */
int relay_consumer_check_distance(struct rchan_buf *buf, uint64_t head, uint64_t pos);

/* If the data at `state` is overwritten, count it as lost and move `state` to the oldest sub-buffer that is
 * not. Returns 0 or -EBADMSG. */
int relay_consumer_catch_up(struct rchan_buf *buf, struct relay_consumer *state);

/* Load head, and help the last reservation (buffer/claims.c), so that the entries of all sub-buffers up to head are
 * complete. Returns 0 or -EBADMSG. */
int relay_settled_head(struct rchan_buf *buf, uint64_t *head, uint64_t *records);

/* True if the data at pos has been overwritten or may have been, by head as it is now. */
bool relay_consumer_is_lapped_now(const struct rchan_buf *buf, uint64_t pos);

/* As relay_consumer_is_lapped_now(), for a head that the caller has loaded. Always false in mode no-overwrite. */
static inline bool relay_consumer_is_lapped(const struct rchan_buf *buf, uint64_t head, uint64_t pos)
{
	return buf->mode != RELAY_NO_OVERWRITE && relay_is_lapped(buf, head, relay_pos_number(buf, pos));
}

/* How many sub-buffers head is ahead of pos. */
static inline uint64_t relay_pos_ahead(const struct rchan_buf *buf, uint64_t head, uint64_t pos)
{
	return relay_pos_number(buf, head) - relay_pos_number(buf, pos);
}

/* The number of records that readers have passed as holes. */
static inline uint64_t relay_n_holes(const struct relay_consumer *consumer)
{
	return consumer->torn_records + consumer->discarded_records;
}

/* The number of the first sub-buffer of which the consumer has consumed nothing. */
static inline uint64_t relay_first_untouched(const struct rchan_buf *buf, const struct relay_consumer *consumer)
{
	uint64_t number = relay_pos_number(buf, consumer->position);
	return number + (consumer->position != relay_pos_start(buf, number));
}

/* A copy of the entry of pos's sub-buffer, with these three fields; the others are 0. */
static inline struct relay_subbuf relay_subbuf_at(const struct rchan_buf *buf, uint64_t pos)
{
	const struct relay_subbuf *subbuf = relay_pos_entry(buf, pos);
	/* Relaxed: published by head, which the caller has loaded before and checks again afterwards. */
	return (struct relay_subbuf){.end = __atomic_load_n(&subbuf->end, __ATOMIC_RELAXED),
	                             .start_records = __atomic_load_n(&subbuf->start_records, __ATOMIC_RELAXED),
	                             .start_bytes = __atomic_load_n(&subbuf->start_bytes, __ATOMIC_RELAXED)};
}

#endif
