/* SPDX-License-Identifier: MIT */
/* The state of a buffer's consumer: how far readers have come, and whose turn it is. */
#ifndef RELAYFS_BUFFER_CONSUMER_H
#define RELAYFS_BUFFER_CONSUMER_H

#include "base/owner_lock.h"
#include "buffer/subbuf_start.h"

/* How often to look again when writers have come round meanwhile. */
enum { RELAY_LAPPED_TRIES = 1000 };

/* The reader's lock: 0, or -EBUSY: a living thread has it. A dead one's is taken over. */
int relay_reader_lock(struct rchan_buf *buf);

static inline void relay_reader_unlock(struct rchan_buf *buf)
{
	relay_owner_unlock(&buf->control->reader_lock, relay_owner_self());
}

/* Does another thread that lives have it? */
bool relay_reader_is_held(const struct rchan_buf *buf);

/* Copy the consumer's state to *state and check each field against the others. 0 or -EBADMSG. */
int relay_consumer_read(struct rchan_buf *buf, struct relay_consumer *state);

/* Make `state` the state. The caller has the lock. */
static inline void relay_consumer_publish(struct rchan_buf *buf, const struct relay_consumer *state)
{
	struct relay_control *control = buf->control;
	uint32_t next = __atomic_load_n(&control->current, __ATOMIC_RELAXED) + 1;
	/* Pairs with the acquire fence in relay_consumer_read(): whoever sees a store to the copy sees the `current` before. */
	__atomic_thread_fence(__ATOMIC_RELEASE);
	control->consumer[next & 1] = *state;
	/* Pairs with the acquire in relay_consumer_read(): the copy before the flip. */
	__atomic_store_n(&control->current, next, __ATOMIC_RELEASE);
	/* Pairs with the acquire in relay_has_left(): our loads of the data before the writers' stores. */
	__atomic_store_n(&control->consumed, state->position, __ATOMIC_RELEASE);
}

/* Back to the beginning. The caller has the lock. */
void relay_consumer_clear(struct rchan_buf *buf);

/* Account for what producers overwrote: move `state` to the oldest sub-buffer that stands. 0 or -EBADMSG. */
int relay_consumer_catch_up(struct rchan_buf *buf, struct relay_consumer *state);

/* head, with the last reservation helped, so that all ledgers up to it are right. 0 or -EBADMSG. */
int relay_settled_head(struct rchan_buf *buf, uint64_t *head, uint64_t *records);

/* Has what lies at pos been overwritten, or may have been? */
bool relay_consumer_is_lapped_now(const struct rchan_buf *buf, uint64_t pos);

/* As relay_consumer_is_lapped_now(), for a head that the caller has loaded. Mode no-overwrite: never. */
static inline bool relay_consumer_is_lapped(const struct rchan_buf *buf, uint64_t head, uint64_t pos)
{
	return buf->mode != RELAY_NO_OVERWRITE && relay_is_lapped(buf, head, relay_pos_number(buf, pos));
}

/* How many sub-buffers head is ahead of pos. */
static inline uint64_t relay_pos_ahead(const struct rchan_buf *buf, uint64_t head, uint64_t pos)
{
	return relay_pos_number(buf, head) - relay_pos_number(buf, pos);
}

/* The ledger of the sub-buffer at pos. */
static inline struct relay_subbuf relay_subbuf_at(const struct rchan_buf *buf, uint64_t pos)
{
	const struct relay_subbuf *subbuf = relay_pos_ledger(buf, pos);
	/* Relaxed: published by head, which the caller loaded before and checks after. */
	return (struct relay_subbuf){.end = __atomic_load_n(&subbuf->end, __ATOMIC_RELAXED),
	                             .start_records = __atomic_load_n(&subbuf->start_records, __ATOMIC_RELAXED),
	                             .start_bytes = __atomic_load_n(&subbuf->start_bytes, __ATOMIC_RELAXED)};
}

#endif
