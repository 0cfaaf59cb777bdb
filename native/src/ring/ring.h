/* SPDX-License-Identifier: MIT */
/* struct relay_ring: a record ring that this process has mapped, with a checked copy of its geometry.
 * Also the addresses of records in it, and loads of its positions; <relayfs/ring_layout.h> describes
 * what is in shared memory. */
#ifndef RELAYFS_RING_RING_H
#define RELAYFS_RING_RING_H

#include "base/claim_table.h"
#include "base/damage.h"
#include "base/mapping.h"
#include "base/pace.h"

#include <relayfs/inline/ring.h>
#include <relayfs/ring_layout.h>
#include <relayfs/ring_store.h>
#include <stdbool.h>

struct relay_ring {
	union {
		struct relay_inline_ring fast; /* what programs know of it */
		struct {
			RELAY_INLINE_RING_MEMBERS;
			struct relay_claim_table claim_table; /* which threads have which claims */
		};
	};
	uint64_t size;
	uint64_t largest; /* bytes of the longest record; a header must fit, too, and the ring is never quite full */
	/* The fast paths are for records shorter than this: largest + 1; with `times` 0, so that they need no other test. */
	uint64_t quick;
	uint32_t time_bytes; /* RELAY_RING_TIME_BYTES, between each record's header and its data; 0: without `times` */
	uint32_t mode, scheme;
	struct relay_ring_claim *claims;
	uint64_t *ready;
	struct relay_ring_state *state;
	struct relay_ring_geometry geometry; /* the checked copy; fields that are needed for each record are above */
	struct relay_mapping mapping;
	uint32_t slot; /* index in the table of open rings */

	/* The owner word of the thread that has taken the consumer's lock with this handle. Only that thread may use
	 * the following fields. */
	uint64_t consumed_by;
	uint32_t n_held; /* records that relay_ring_next() has returned, and that are not released yet */
	struct relay_ring_counts seen;
	uint64_t produced; /* the producer position, as is_record_at() in ring/consume.c has loaded it last */
	struct relay_look look;
	uint64_t time; /* of the record that next() or read() has returned last; 0: it has none */
	uint64_t damaged_at;
	struct relay_damage damage;

	/* Where relay_ring_state() ended its search: from `empty_from` to `empty` there are only
	 * records that readers skip. */
	bool is_empty_known;
	uint64_t empty_from;
	struct relay_ring_counts empty;

	struct relay_pace pace; /* of relay_ring_wait() with this ring as the first */

	struct relay_ring_remote *remote; /* see ring/remote.h; NULL: the ring is mapped */
};

RELAY_STATIC_ASSERT(offsetof(struct relay_ring, claim_table) == offsetof(struct relay_inline_ring, table),
                    "programs know where a ring's table of claims is");

/* The most records that one call of a file server passes, 10 to 50 ns each; the next call continues. */
enum { RELAY_RING_WORK = 1 << 16 };

static inline unsigned char *relay_ring_at(const struct relay_ring *ring, uint64_t pos)
{
	return ring->data + (pos & ring->mask);
}

/* The value of a record's header at pos, both words. */
static inline uint64_t relay_ring_header(const struct relay_ring *ring, uint64_t pos, uint32_t length)
{
	return length | ((pos & ring->mask) / RELAY_PAGE_BYTES + RELAY_RING_FIRST_PAGE) << 32;
}

/* How many of a record's `length` bytes are its time. A producer that knows only the kernel's format may have written fewer. */
static inline uint32_t relay_ring_time_of(const struct relay_ring *ring, uint64_t length)
{
	return length >= ring->time_bytes ? ring->time_bytes : 0;
}

/* The address of the first word of the header at pos, a multiple of 8. */
static inline uint32_t *relay_ring_length_at(const struct relay_ring *ring, uint64_t pos)
{
	return (uint32_t *)relay_ring_at(ring, pos);
}

static inline uint64_t relay_ring_produced(const struct relay_ring *ring)
{
	/* Pairs with relay_ring_pass(), drain_ready() in ring/publish.c and the sections of base/rseq.h: a record's
	 * header before the position. */
	return __atomic_load_n(&ring->producer->position.first, __ATOMIC_ACQUIRE);
}

static inline uint64_t relay_ring_consumed(const struct relay_ring *ring)
{
	/* Pairs with the release in relay_ring_consumer_publish(): the reader's loads of the data before
	 * this thread's stores to it. */
	return __atomic_load_n(&ring->consumer->position, __ATOMIC_ACQUIRE);
}

/* The position up to which records are reserved; the producer position may be before it. */
static inline uint64_t relay_ring_reserved(const struct relay_ring *ring)
{
	/* Pairs with relay_ring_take_place() in ring/reserve.h. */
	return ring->scheme == RELAY_RSEQ ? relay_ring_produced(ring)
	                                  : __atomic_load_n(&ring->producer->tail[0].first, __ATOMIC_ACQUIRE);
}

/* Mode overwrite: the word with the position of the oldest record that is not overwritten. In scheme lockless it has no
 * index bit. */
static inline const uint64_t *relay_ring_oldest_word(const struct relay_ring *ring)
{
	return ring->scheme == RELAY_RSEQ ? &ring->state->oldest.first : &ring->producer->overwritten.first;
}

/* The position before which memory is free for producers. */
static inline uint64_t relay_ring_floor(const struct relay_ring *ring)
{
	if (ring->mode == RELAY_OVERWRITE)
		/* Pairs with change_oldest() in ring/reserve.c. */
		return __atomic_load_n(relay_ring_oldest_word(ring), __ATOMIC_ACQUIRE) & ~RELAY_LATCH_INDEX;
	return relay_ring_consumed(ring);
}

/* True if the record lies completely in this range, before `produced`. */
static inline bool relay_ring_fits(const struct relay_ring *ring, uint64_t pos, uint32_t length, uint64_t produced)
{
	uint64_t total = relay_ring_total(length & ~(RELAY_RING_BUSY | RELAY_RING_DISCARD));
	return pos % 8 == 0 && produced - pos < ring->size && total <= produced - pos;
}

/* Make a ring that is used through `remote` (ring/remote.h), with private memory. The ring owns `remote`, which is
 * closed on failure. fd is open on any file, and stays the caller's. Returns NULL and sets errno on failure. */
struct relay_ring *relay_ring_new_remote(struct relay_ring_remote *remote, const struct relay_ring_geometry *geometry,
                                         int fd);

/* As relay_ring_view(), for a moment: fd is closed in any case. */
struct relay_ring *relay_ring_glance(int fd);

/* Return the open ring whose data contains `record`; NULL: none. Async-signal-safe. */
struct relay_ring *relay_ring_of(const void *record);

#endif
