/* SPDX-License-Identifier: MIT */
/*
 * One series of records, written in every way there is: copied; reserved and committed at once, later, out of
 * order or by another thread; and between them reservations that are discarded.
 */
#ifndef STRESS_STREAM_H
#define STRESS_STREAM_H

#include <relayfs/relay.h>
#include <relayfs/store.h>
#include <stdbool.h>

#include "stress.h"

enum { STRESS_N_OPEN = 8 }; /* reservations that one stream holds at once */

/* A reservation. Owner: the stream's thread; while HANDED, whoever makes it BUSY. */
enum { OPEN_FREE, OPEN_KEPT, OPEN_HANDED, OPEN_BUSY, OPEN_DONE };
struct stress_open {
	int state;
	bool discard;
	uint32_t length;
	uint64_t sequence;
	struct rchan_buf *buf; /* NULL: the channel's */
	void *to;
};

/* Owner: one thread, or its handler. */
struct stress_stream {
	uint32_t id;
	uint64_t sequence;
	uint64_t filled; /* sequence + 1 of what stands in `record` */
	uint64_t random;
	struct stress_slot *slot;
	struct rchan *chan; /* NULL: the buffers */
	struct rchan_buf **bufs;
	unsigned n_buffers;
	bool reserves;
	bool unplugged;  /* CPUs are: EPERM says that a buffer's is not there */
	bool hands_over; /* not a handler: it would wait for a thread whose handler waits for this one */
	struct stress_open open[STRESS_N_OPEN];
	char record[STRESS_LENGTH_MAX];
};

/* Write the next record, or try to. 0: it was taken, and is committed or will be. */
int stress_write_next(struct stress_stream *s);

/* Commit, or discard, what the stream holds; waits for nobody but other threads that are just doing so. */
void stress_settle(struct stress_stream *s);

/* Commit one of the reservations that another thread's stream has handed over, if there is any. */
void stress_serve(struct stress_stream *other);

#endif
