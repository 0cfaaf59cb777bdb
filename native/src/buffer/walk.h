/* SPDX-License-Identifier: MIT */
/* Walking along a buffer's data from a consumer's state, past holes and ends of sub-buffers, up to the first open
 * reservation. buffer/consume.c reads by such walks. */
#ifndef RELAYFS_BUFFER_WALK_H
#define RELAYFS_BUFFER_WALK_H

#include "buffer/claims.h"
#include "buffer/packet.h"

/* One walk. Callers set the fields that they need; others are 0. */
struct relay_walk {
	struct rchan_buf *buf;
	struct relay_plan *plan; /* plan->to is the state that the walk has reached */
	uint64_t head, head_records;
	uint64_t produced;        /* number of finished sub-buffers */
	uint64_t at;              /* data before this stream position (relay_consumer.bytes) is skipped */
	uint64_t skip, passed;    /* bytes of data to skip, and bytes skipped so far */
	struct relay_span *spans; /* receives the data; NULL: only counted */
	size_t n_spans, n_used;
	size_t max_bytes, total;
	uint64_t until;               /* number of the sub-buffer at whose start the walk ends; 0: none */
	uint64_t n_subbufs;           /* relay_walk_plan(): pass so many finished sub-buffers; 0: walk along the data */
	struct relay_claim_view stop; /* the first claim that is TAKEN or a hole at or after `searched_from` */
	uint64_t searched_from;       /* position from which on the claims were searched */
	bool is_searched;
	struct relay_holes *holes;    /* the list of holes to use; NULL: buf->holes */
	struct relay_packet *packets; /* receives the headers of packets; NULL: they are not needed */
	struct relay_packet *packet;  /* the header of the sub-buffer that the walk is in */
};

/*
 * Walk from plan->to, to which relay_consumer_catch_up() was applied, until the data, the spans or max_bytes are used
 * up. Returns 0; -EBADMSG; -EINPROGRESS: buf->work is used up, and plan->to is the state reached. In overwrite mode the
 * walk may have read entries while they changed, so the caller checks that it was not lapped. The caller of this and
 * the following functions has buf->walking.
 */
int relay_walk_data(struct relay_walk *walk);

/* Walk to the end of a finished sub-buffer. Returns 1; 0: the sub-buffer is not finished, or has an open
 * reservation; -EBADMSG; -EINPROGRESS: buf->work is used up. *walk->plan is changed only if the result is 1. */
int relay_walk_pass_subbuf(struct relay_walk *walk);

/* Fill in the packet's header for the sub-buffer at plan->to; packet may be NULL. *walk->plan is not changed.
 * Returns 1; 0: the packet cannot be read as a whole yet; -EBADMSG; -EINPROGRESS. */
int relay_walk_say_packet(struct relay_walk *walk, struct relay_packet *packet);

/* Load head into the walk, before relay_walk_pass_subbuf() or relay_walk_say_packet(). Returns 0 or -EBADMSG. */
int relay_walk_see_head(struct relay_walk *walk);

/* Walk from walk->plan->from, and store in walk->plan what a consumption would do, without the reader lock and
 * without changing the consumer's state. Returns as relay_walk_data(). */
int relay_walk_plan(struct relay_walk *walk);

#endif
