/* SPDX-License-Identifier: MIT */
/* Walking along the data between two positions. buffer/consume.c tells what for. */
#ifndef RELAYFS_BUFFER_WALK_H
#define RELAYFS_BUFFER_WALK_H

#include "buffer/claims.h"
#include "buffer/packet.h"

/* One walk along the data. */
struct relay_walk {
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

/*
 * Walk from plan->to, to which relay_consumer_catch_up() was applied, until data, spans or bytes are used up. 0; -EBADMSG;
 * -EINPROGRESS: buf->work is used up, and plan->to is the position reached.
 * In overwrite mode it may have read ledgers while they changed: the caller checks that it was not lapped.
 */
int relay_walk_data(struct relay_walk *walk);

/* Pass a finished sub-buffer as a whole. 1; 0: the sub-buffer is not finished, or holds an open reservation; -EBADMSG;
 * -EINPROGRESS: out of work. *walk->plan is unchanged unless the result is 1. */
int relay_walk_pass_subbuf(struct relay_walk *walk);

/* Fill in the head of the sub-buffer at plan->to; packet may be NULL; *walk->plan is unchanged. 1; 0: the packet cannot be read
 * as a whole yet; -EBADMSG; -EINPROGRESS. */
int relay_walk_say_packet(struct relay_walk *walk, struct relay_packet *packet);

/* Look where head is, before relay_walk_pass_subbuf() or relay_walk_say_packet(). 0 or -EBADMSG. */
int relay_walk_see_head(struct relay_walk *walk);

/* Plan a consumption from walk->plan->from into walk->plan, with no lock and without changing the consumer's state. As
 * relay_walk_data(). */
int relay_walk_plan(struct relay_walk *walk);

#endif
