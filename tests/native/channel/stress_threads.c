/* SPDX-License-Identifier: MIT */
/*
 * Writers and readers in one process, on one mapping: what a thread sanitizer can see.
 *
 *     stress_threads STORE_CHANNEL_DIRECTORY RECORDS_PER_WRITER [reserve]
 *
 * Four writers choose their buffer at random, and finish what one of the others has reserved; one reader per buffer
 * consumes. No-overwrite: each record must come once, in each writer's order within a buffer.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <relayfs/layout.h>
#include <relayfs/store.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "stress_stream.h"

enum { N_WRITERS = 4, MAX_BUFFERS = 256, READ_BYTES = 1 << 20, N_SPANS = 64, WAIT_MS = 50 };

static struct rchan_buf *bufs[MAX_BUFFERS];
static unsigned n_buffers;
static uint64_t n_records;
static uint8_t *seen[N_WRITERS];
static struct stress_stream streams[N_WRITERS];
static struct stress_slot slots[N_WRITERS];
static bool writers_done;

static _Noreturn void fail(const char *what, long a, long b)
{
	fprintf(stderr, "stress_threads: %s: %ld %ld\n", what, a, b);
	_exit(1);
}

static void *write_all(void *argument)
{
	struct stress_stream *s = argument;
	int err;

	while (s->sequence < n_records) {
		err = stress_write_next(s);
		stress_serve(&streams[(s->id + 1) % N_WRITERS]);
		if (!err)
			continue;
		if (err != -ENOSPC && err != -EBUSY)
			fail("write", s->id, err);
		stress_settle(s);
		sched_yield();
	}
	stress_settle(s);
	return NULL;
}

static void enter(const struct stress_record *r, int64_t *last)
{
	if (r->stream >= N_WRITERS || r->sequence >= n_records)
		fail("never written", r->stream, r->sequence);
	if (r->sequence <= last[r->stream])
		fail("out of order", r->stream, r->sequence);
	last[r->stream] = r->sequence;
	if (__atomic_fetch_add(&seen[r->stream][r->sequence], 1, __ATOMIC_RELAXED))
		fail("twice", r->stream, r->sequence);
}

/* Whole sub-buffers fit into READ_BYTES, so spans hold whole records. */
static size_t read_some(struct rchan_buf *buf, int64_t *last)
{
	struct relay_span spans[N_SPANS];
	struct stress_record record;
	size_t total, at;
	int n = relay_consume_begin(buf, READ_BYTES, spans, N_SPANS, &total), i;

	if (n < 0)
		fail("consume", n, 0);
	for (i = 0; i < n; i++) {
		for (at = 0; at < spans[i].length; at += record.length) {
			if (stress_parse((const char *)spans[i].data + at, spans[i].length - at, &record))
				fail("torn", i, (long)at);
			enter(&record, last);
		}
	}
	relay_consume_end(buf);
	return total;
}

static void *read_all(void *argument)
{
	struct rchan_buf *buf = argument;
	int64_t last[N_WRITERS] = {-1, -1, -1, -1};
	bool last_round = false;
	uint32_t seq;

	for (;;) {
		if (read_some(buf, last))
			continue;
		if (last_round)
			return NULL;
		last_round = __atomic_load_n(&writers_done, __ATOMIC_ACQUIRE);
		relay_buf_arm(buf, RELAY_ARM_RECORD, &seq);
		if (!last_round && !(relay_buf_state(buf) & RELAY_HAS_DATA))
			relay_buf_wait_any(&buf, &seq, 1, NULL, 0, WAIT_MS);
	}
}

static void open_buffers(const char *directory)
{
	char path[4096];

	for (n_buffers = 0; n_buffers < MAX_BUFFERS; n_buffers++) {
		snprintf(path, sizeof(path), "%s/mem%u", directory, n_buffers);
		if (access(path, F_OK) != 0)
			break;
		bufs[n_buffers] = relay_buf_open(path);
		if (!bufs[n_buffers])
			fail("open", n_buffers, errno);
	}
	if (n_buffers == 0)
		fail("no buffers", 0, 0);
}

int main(int argc, char **argv)
{
	pthread_t writer[N_WRITERS], reader[MAX_BUFFERS];
	uint64_t sequence;
	unsigned i;

	if (argc < 3)
		return 2;
	open_buffers(argv[1]);
	n_records = strtoull(argv[2], NULL, 0);
	for (i = 0; i < N_WRITERS; i++) {
		seen[i] = calloc(n_records, 1);
		streams[i] = (struct stress_stream){.id = i,
		                                    .random = i + 1,
		                                    .slot = &slots[i],
		                                    .bufs = bufs,
		                                    .n_buffers = n_buffers,
		                                    .reserves = argc > 3,
		                                    .hands_over = true};
	}
	for (i = 0; i < n_buffers; i++)
		pthread_create(&reader[i], NULL, read_all, bufs[i]);
	for (i = 0; i < N_WRITERS; i++)
		pthread_create(&writer[i], NULL, write_all, &streams[i]);
	for (i = 0; i < N_WRITERS; i++)
		pthread_join(writer[i], NULL);
	__atomic_store_n(&writers_done, true, __ATOMIC_RELEASE);
	for (i = 0; i < n_buffers; i++) {
		pthread_join(reader[i], NULL);
		relay_buf_release(bufs[i]);
	}
	for (i = 0; i < N_WRITERS; i++) {
		for (sequence = 0; sequence < n_records; sequence++)
			if (!seen[i][sequence])
				fail("never came", i, (long)sequence);
		free(seen[i]);
	}
	return 0;
}
