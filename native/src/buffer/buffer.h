/* SPDX-License-Identifier: MIT */
/*
 * One relay buffer that this process has mapped (struct rchan_buf): the checked copy of its geometry, and the
 * addresses of its parts. Also arithmetic on positions; <relayfs/layout.h> describes a position's bits and all
 * that is in shared memory.
 *
 * The entry of a sub-buffer is its struct relay_subbuf. Head, head.second and so on are fields of struct relay_control.
 */
#ifndef RELAYFS_BUFFER_BUFFER_H
#define RELAYFS_BUFFER_BUFFER_H

#include "base/claim_table.h"
#include "base/damage.h"
#include "base/directory.h"
#include "base/latch.h"
#include "base/mapping.h"

#include <errno.h>
#include <pthread.h>
#include <relayfs/inline/reserve.h>
#include <relayfs/layout.h>
#include <relayfs/relay.h>
#include <relayfs/store.h>

/* A consumption: relay_consume_begin() fills it in, and relay_consume_end() makes `to` the consumer's state. */
struct relay_plan {
	struct relay_consumer from, to;
	uint64_t start;                      /* position of the first data, which relay_consume_valid() checks */
	uint64_t head;                       /* position up to which there were data */
	uint64_t holes[RELAY_N_CLAIMS / 64]; /* a bit for each claim that is a hole before `to` */
	bool active;                         /* this process has the buffer's reader lock */
};

/* The discarded records of one sub-buffer that a reader has collected so far; see buffer/holes.c. */
struct relay_holes {
	uint64_t list;   /* relay_subbuf.holes when the collection began */
	uint32_t resets; /* relay_control.resets at that time */
	uint32_t next;   /* offset + 1 of the hole to collect next; 0: all are collected */
	/* offset + 1 of the hole that ends the collection, because it and those after it are
	 * collected already; 0: none */
	uint32_t until;
	uint32_t left; /* holes that are still to come, by the `count` of the last one; 0: not known yet */
	uint32_t n, capacity;
	bool is_used; /* a walk has passed the last hole */
	struct relay_found_hole *at;
	/* For buffer/hole_lists.c, protected by its mutex. */
	struct relay_holes_account *account; /* NULL: the list has no memory */
	struct rchan_buf *buf;
	struct relay_holes *older, *newer; /* neighbours in the account's list */
	uint64_t used_ms;                  /* last use, for long lists only; CLOCK_MONOTONIC_COARSE */
};

/* How far a walk has come: a later walk that starts between `from` and `to` continues at `to`. */
struct relay_progress {
	bool is_set;
	uint32_t resets; /* relay_control.resets at that time */
	uint64_t from;   /* position */
	struct relay_consumer to;
};

enum relay_subbuf_start {
	RELAY_BEGUN,
	RELAY_NOT_YET,           /* may not begin now, or this process may not decide it */
	RELAY_SUBBUF_START_BUSY, /* another thread has kept the switch lock too long */
	RELAY_IN_CALLBACK,       /* this thread has the switch lock already */
	RELAY_SUBBUF_START_DAMAGED
};

/* rchan_buf.reserve in a buffer with `times`, so that relay_reserve_here() needs no further comparison for others. */
enum { RELAY_RESERVE_TIMED = 2, RELAY_HEAD_BYTES = sizeof(struct relay_timed_head) };

/* At most so many packets are passed to a reader at once. */
enum { RELAY_N_PACKETS = 256 };

/* Decides whether the sub-buffer at pos, where head is, may begin, and if so lets it begin. Called with the switch
 * lock; see buffer/subbuf_start.h. */
typedef enum relay_subbuf_start relay_subbuf_start_function(struct rchan_buf *buf, uint64_t pos);

struct rchan_buf {
	union {
		struct relay_inline_buf fast; /* what programs know of it */
		struct {
			RELAY_INLINE_BUF_MEMBERS;
			struct relay_claim_table claim_table; /* the owners of `claims` */
		};
	};
	uint64_t subbuf_size, n_subbufs;
	uint64_t index_mask; /* of a position, shifted to bit 0 */
	uint64_t lap;        /* one lap, as a difference of positions */
	uint32_t offset_bits, index_bits;
	uint32_t cpu;
	uint32_t mode, scheme;
	struct relay_subbuf *subbufs;
	struct relay_claim *claims;
	char *relay_file; /* path of the mount's file, through which threads write that cannot write here; NULL: none */
	void *hold;       /* a mapped page of a file of the mount, see relay_buf_hold(); or NULL */
	uint32_t reserve; /* enum relay_reserve, or RELAY_RESERVE_TIMED */
	uint32_t start_reserve, channel_start_reserve;
	/* for tracepoints: a writer tries for some microseconds to get a lock or a claim; then the record is lost */
	bool never_waits;
	bool may_block; /* threads may wait up to a second for a lock; the file server may not, and tries again later */
	bool is_timed;  /* records have heads: struct relay_timed_head */
	uint32_t wait_lost; /* wait_lost of base/robust_lock.h, for all locks of this buffer */
	/* odd while its memory is being replaced: a writer that finds RELAY_RESETTING waits until it is even */
	uint32_t moves;
	struct rchan *chan;               /* the channel; NULL: the buffer was opened alone */
	const struct rchan_callbacks *cb; /* NULL: none */
	bool begins; /* a sub-buffer begins by a call of `begin`, with the switch lock; if false, by the switch */
	relay_subbuf_start_function *begin; /* NULL: this process may not decide whether one begins */
	/* allocates the memory of the data; NULL: this process may not. See buffer/subbuf_start.h */
	bool (*allocate)(struct rchan_buf *);
	void (*begun)(
	    struct rchan_buf *); /* called after this process has begun a sub-buffer, without locks; NULL: nothing is */
	int64_t allocate_again_ms;    /* when to try that again after a failure, CLOCK_MONOTONIC. Writer: `allocate` */
	uint64_t header;              /* bytes that `begin` reserves; protected by the switch lock */
	uint32_t pid;                 /* the process whose packets these are */
	struct relay_packet *packets; /* RELAY_N_PACKETS, for readers of a format with packets; else NULL */
	struct relay_geometry geometry;        /* the checked copy */
	struct relay_holes holes, holes_ahead; /* for reading data, and for relay_consume_holes() */
	struct relay_mapping mapping;
	struct relay_plan plan;
	uint32_t work; /* units of work left for the current call; see relay_work_begin() */
	/* A thread of this process that has this mutex may walk along the data, and use `holes`, `holes_ahead` and the
	 * fields below. */
	pthread_mutex_t walking;
	/* How far relay_consume_peek(), relay_consume_holes() and relay_consume_begin_behind() have come. */
	struct relay_progress empty, passed, skipped;
	struct relay_damage damage;
};

RELAY_STATIC_ASSERT(offsetof(struct rchan_buf, claim_table) == offsetof(struct relay_inline_buf, table),
                    "programs know where a buffer's table of claims is");

/* Programs that were compiled before it call the library for each record. */
RELAY_STATIC_ASSERT(RELAY_LAYOUT_VERSION == 9 && RELAY_RING_VERSION == 4,
                    "a new version of a format needs a new RELAY_INLINE_VERSION");

/*
 * The work of a call is limited, because other users may fill shared memory with claims, holes and empty sub-buffers,
 * and the file server has one thread for all channels. A call does at most RELAY_WORK units of some 10 to 50 ns; the
 * next call continues where it stopped. Only a sub-buffer that has to be walked as a whole may take RELAY_WORK_SUBBUF.
 */
enum { RELAY_WORK = 1 << 16, RELAY_WORK_SUBBUF = 1 << 20 };

static inline void relay_work_begin(struct rchan_buf *buf)
{
	buf->work = RELAY_WORK;
}

static inline void relay_work_add(struct rchan_buf *buf, uint32_t units)
{
	buf->work = buf->work > units ? buf->work - units : 0;
}

static inline uint64_t relay_pos_offset(const struct rchan_buf *buf, uint64_t pos)
{
	return pos & buf->offset_mask;
}

static inline uint64_t relay_pos_index(const struct rchan_buf *buf, uint64_t pos)
{
	return pos >> buf->offset_bits & buf->index_mask;
}

static inline uint64_t relay_pos_lap(const struct rchan_buf *buf, uint64_t pos)
{
	return (pos & RELAY_POSITION_MASK) >> (buf->offset_bits + buf->index_bits);
}

/* The number of pos's sub-buffer, counted from the buffer's creation or reset. */
static inline uint64_t relay_pos_number(const struct rchan_buf *buf, uint64_t pos)
{
	return relay_pos_lap(buf, pos) * buf->n_subbufs + relay_pos_index(buf, pos);
}

/* The position at which sub-buffer `number` starts. */
static inline uint64_t relay_pos_start(const struct rchan_buf *buf, uint64_t number)
{
	return (number / buf->n_subbufs << buf->index_bits | number % buf->n_subbufs) << buf->offset_bits;
}

/* The position at which the sub-buffer after pos's starts. It is before pos when all positions are used
 * up (after some 2^62 bytes). */
static inline uint64_t relay_pos_next(const struct rchan_buf *buf, uint64_t pos)
{
	uint64_t index = relay_pos_index(buf, pos) + 1, lap = relay_pos_lap(buf, pos);
	if (index == buf->n_subbufs) {
		index = 0;
		lap++;
	}
	return (lap << buf->index_bits | index) << buf->offset_bits & RELAY_POSITION_MASK;
}

/* True if pos lies in the data. To be checked before a position from shared memory is used as an address. */
static inline bool relay_pos_valid(const struct rchan_buf *buf, uint64_t pos)
{
	return relay_pos_index(buf, pos) < buf->n_subbufs && relay_pos_offset(buf, pos) <= buf->subbuf_size;
}

/* An upper limit of the bytes written before pos, without padding. Less than 2^62, as positions are. */
static inline uint64_t relay_pos_most_bytes(const struct rchan_buf *buf, uint64_t pos)
{
	return relay_pos_number(buf, pos) * buf->subbuf_size + relay_pos_offset(buf, pos);
}

/* The index in `subbufs` of the entry of pos's sub-buffer. */
static inline uint64_t relay_pos_entry_index(const struct rchan_buf *buf, uint64_t pos)
{
	return (relay_pos_lap(buf, pos) & 1) * buf->n_subbufs + relay_pos_index(buf, pos);
}

static inline unsigned char *relay_pos_data(const struct rchan_buf *buf, uint64_t pos)
{
	return buf->data + relay_pos_index(buf, pos) * buf->subbuf_size + relay_pos_offset(buf, pos);
}

/*
 * The entry of pos's sub-buffer. Each place in the data has two entries, used in turn: the entry of the previous lap
 * stays as it is until a switch is published, so that an aborted switch changes no valid entry.
 */
static inline struct relay_subbuf *relay_pos_entry(const struct rchan_buf *buf, uint64_t pos)
{
	return &buf->subbufs[relay_pos_entry_index(buf, pos)];
}

/* Count the records of a hole, which readers will have to pass. */
static inline void relay_count_hole(struct rchan_buf *buf, uint64_t n_records)
{
	/* Relaxed: readers use the count only to decide whether to search for holes. */
	__atomic_fetch_add(&buf->control->n_holes, n_records, __ATOMIC_RELAXED);
}

#endif
