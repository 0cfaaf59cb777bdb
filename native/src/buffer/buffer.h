/* SPDX-License-Identifier: MIT */
/*
 * One buffer, mapped by this process: its geometry, copied and checked once, and where its parts lie.
 * Position arithmetic lives here; layout.h draws the word.
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
#include <relayfs/layout.h>
#include <relayfs/relay.h>
#include <relayfs/store.h>

/* What relay_consume_begin() promised and relay_consume_end() makes true. */
struct relay_plan {
	struct relay_consumer from, to;
	uint64_t start;                      /* where the data begins; relay_consume_valid() watches it */
	uint64_t holes[RELAY_N_CLAIMS / 64]; /* claims that `to` lies behind, a bit for each */
	bool active;                         /* this buffer's reader lock is ours */
};

/* The discarded records of one sub-buffer, as far as a reader has collected them; see buffer/holes.c. */
struct relay_holes {
	uint64_t list;   /* the ledger's `holes` when it began to collect */
	uint32_t resets; /* the buffer's, then */
	uint32_t next;   /* offset + 1 of the one to be collected next; 0: all are */
	uint32_t until;  /* offset + 1 of the one from which on all were collected before; 0: none was */
	uint32_t left;   /* holes that the chain still has, as the last one collected says; 0: not known yet */
	uint32_t n, capacity;
	bool is_used; /* somebody has come to the end of it */
	struct relay_found_hole *at;
	/* Of buffer/hole_lists.c, under its mutex. */
	struct relay_holes_account *account; /* NULL: the list takes no memory */
	struct rchan_buf *buf;
	struct relay_holes *older, *newer; /* of the account */
	uint64_t used_ms;                  /* when a walk used a long one last, CLOCK_MONOTONIC_COARSE */
};

/* Where a look along the data came to: what lies between `from` and `to` need not be looked at again. */
struct relay_progress {
	bool is_set;
	uint32_t resets; /* the buffer's, then */
	uint64_t from;   /* position */
	struct relay_consumer to;
};

enum relay_subbuf_start {
	RELAY_BEGUN,
	RELAY_NOT_YET,           /* no, or who could decide is not in this process */
	RELAY_SUBBUF_START_BUSY, /* another thread has the switch lock for longer than this one may wait */
	RELAY_IN_CALLBACK,       /* of this very thread */
	RELAY_SUBBUF_START_DAMAGED
};

/* As many packets are described to a reader at once, at most. */
enum { RELAY_N_PACKETS = 256 };

/* Decides whether the sub-buffer at pos, where head is, may begin; has the switch lock. See buffer/subbuf_start.h. */
typedef enum relay_subbuf_start relay_subbuf_start_function(struct rchan_buf *buf, uint64_t pos);

struct rchan_buf {
	struct relay_control *control;
	unsigned char *data;
	uint64_t subbuf_size;
	uint64_t subbuf_end; /* offset up to which records may lie */
	uint64_t largest;    /* record that fits, bytes */
	uint64_t n_subbufs;
	uint64_t offset_mask, index_mask; /* of a position, shifted down */
	uint64_t lap;                     /* one lap, as a difference of positions */
	uint32_t offset_bits, index_bits;
	uint32_t cpu;
	uint32_t mode, scheme;
	struct relay_subbuf *subbufs;
	struct relay_claim *claims;
	struct relay_claim_table claim_table; /* who has which of them */
	char *relay_file;                     /* for threads that may not write themselves; NULL: not mounted */
	void *hold;         /* a page that maps the mount's file of that name, see relay_buf_hold(); or NULL */
	uint32_t reserve;   /* enum relay_reserve */
	uint32_t timestamp; /* enum relay_timestamp */
	uint32_t start_reserve, channel_start_reserve;
	uint64_t
	    epoch; /* uppermost 16 bits of the clock: of no later than the next record's packet's start. See buffer/write.h */
	bool never_waits;   /* a tracepoint's: gives a record up as lost before it waits for a lock or a claim */
	bool moving;        /* its memory is being replaced: writers that meet RELAY_RESETTING wait for the end of it */
	bool may_block;     /* up to a second, for another process's lock; the file server may not: it retries */
	uint32_t wait_lost; /* how much less it waits for them, since that was in vain; see base/robust_lock.h */
	struct rchan *chan; /* whose buffer it is; NULL: opened by itself */
	const struct rchan_callbacks *cb;   /* NULL: none */
	bool begins;                        /* sub-buffers begin by `begin`, under the switch lock; else at once */
	relay_subbuf_start_function *begin; /* NULL: this process may not decide */
	bool (*allocate)(
	    struct rchan_buf *);      /* gives the data memory; NULL: this process may not. See buffer/subbuf_start.h */
	int64_t allocate_again_ms;    /* not before, CLOCK_MONOTONIC: there was none. Writer: `allocate` */
	uint64_t header;              /* bytes that `begin` reserved; under the switch lock */
	uint32_t pid;                 /* whose packets */
	struct relay_packet *packets; /* RELAY_N_PACKETS, for readers of a format with packets; else NULL */
	struct relay_geometry geometry;        /* as it was checked: what is not needed for each record */
	struct relay_holes holes, holes_ahead; /* where data is read, and where relay_consume_holes() has come to */
	struct relay_mapping mapping;
	struct relay_plan plan;
	uint32_t work; /* what the call under way may still do; see relay_work_begin() */
	/* This process's: a thread walks along the data, and uses what follows, `holes` and `holes_ahead`. */
	pthread_mutex_t walking;
	/* Of relay_consume_peek(), relay_consume_holes(), relay_consume_begin_behind(). */
	struct relay_progress empty, passed, skipped;
	struct relay_damage damage;
};

/*
 * The memory is anybody's to fill with things to walk over, and a file server has one thread for all channels. So one
 * call does no more than RELAY_WORK units, each of them some 10 to 50 ns; what is left is for the next call, which goes
 * on where this one stopped. Only a sub-buffer that has to be passed as a whole may take RELAY_WORK_SUBBUF.
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

/* The free-running number of the sub-buffer. */
static inline uint64_t relay_pos_number(const struct rchan_buf *buf, uint64_t pos)
{
	return relay_pos_lap(buf, pos) * buf->n_subbufs + relay_pos_index(buf, pos);
}

/* Where sub-buffer `number` begins. */
static inline uint64_t relay_pos_start(const struct rchan_buf *buf, uint64_t number)
{
	return (number / buf->n_subbufs << buf->index_bits | number % buf->n_subbufs) << buf->offset_bits;
}

/* Where the sub-buffer after pos's begins; before pos when all positions are used up (2^62 bytes or so). */
static inline uint64_t relay_pos_next(const struct rchan_buf *buf, uint64_t pos)
{
	uint64_t index = relay_pos_index(buf, pos) + 1, lap = relay_pos_lap(buf, pos);
	if (index == buf->n_subbufs) {
		index = 0;
		lap++;
	}
	return (lap << buf->index_bits | index) << buf->offset_bits & RELAY_POSITION_MASK;
}

/* Shared memory may hold anything: a position is an address only if this says so. */
static inline bool relay_pos_valid(const struct rchan_buf *buf, uint64_t pos)
{
	return relay_pos_index(buf, pos) < buf->n_subbufs && relay_pos_offset(buf, pos) <= buf->subbuf_size;
}

/* The most bytes that can have been written before pos: as if there were no padding. Below 2^62, as positions are. */
static inline uint64_t relay_pos_most_bytes(const struct rchan_buf *buf, uint64_t pos)
{
	return relay_pos_number(buf, pos) * buf->subbuf_size + relay_pos_offset(buf, pos);
}

/* Which of `subbufs` it is that relay_pos_ledger() gives. */
static inline uint64_t relay_pos_ledger_index(const struct rchan_buf *buf, uint64_t pos)
{
	return (relay_pos_lap(buf, pos) & 1) * buf->n_subbufs + relay_pos_index(buf, pos);
}

static inline unsigned char *relay_pos_data(const struct rchan_buf *buf, uint64_t pos)
{
	return buf->data + relay_pos_index(buf, pos) * buf->subbuf_size + relay_pos_offset(buf, pos);
}

/*
 * The ledger of the sub-buffer at pos. Two for each place in the ring, taken in turn: that of the sub-buffer a
 * lap before stands until the switch is published, so what an aborted section stored here harms nobody.
 */
static inline struct relay_subbuf *relay_pos_ledger(const struct rchan_buf *buf, uint64_t pos)
{
	return &buf->subbufs[relay_pos_ledger_index(buf, pos)];
}

/* One more that readers will have to pass. */
static inline void relay_count_hole(struct rchan_buf *buf)
{
	/* Relaxed: it only says whether to look for some. */
	__atomic_fetch_add(&buf->control->n_holes, 1, __ATOMIC_RELAXED);
}

#endif
