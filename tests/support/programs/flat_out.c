/* SPDX-License-Identifier: MIT */
/*
 *     flat_out relay|ring MEM CPU write|read|reset     write records to a mem file, read them, or reset it, until it is killed
 *
 * A writer writes some at once, reserves and commits others, and discards a few. It runs on that CPU. A ring has no reset.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <relayfs/ring_store.h>
#include <relayfs/store.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RESET_PAUSE_US = 500 };

static char text[512];

static void write_relay(struct rchan_buf *buf, unsigned n)
{
	void *to;
	size_t length = 1 + n * 7 % 300;
	if (n % 4) {
		(void)relay_buf_write(buf, text, length);
	} else if (relay_buf_reserve(buf, length, &to) == 0) {
		memset(to, 'r', length);
		if (n % 8)
			relay_buf_commit(buf, to);
		else
			relay_buf_discard(buf, to);
	}
}

static void write_ring(struct relay_ring *ring, unsigned n)
{
	size_t length = 1 + n * 7 % 300;
	if (n % 4) {
		(void)relay_ring_output(ring, text, length, 0);
		return;
	}
	void *to = relay_ring_reserve(ring, length, 0);
	if (to && n % 8)
		(void)relay_ring_commit(to, 0);
	else if (to)
		(void)relay_ring_discard(to, 0);
}

static void reset_relay(struct rchan_buf *buf)
{
	(void)relay_buf_reset(buf);
	usleep(RESET_PAUSE_US);
}

static void read_relay(struct rchan_buf *buf)
{
	struct relay_span spans[16];
	size_t total;
	if (relay_consume_begin(buf, 3000, spans, 16, &total) > 0)
		relay_consume_end(buf);
}

int main(int argc, char **argv)
{
	cpu_set_t set;
	if (argc != 5)
		return 2;
	CPU_ZERO(&set);
	CPU_SET(atoi(argv[3]), &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		return 1;
	int writes = strcmp(argv[4], "write") == 0;
	struct rchan_buf *buf = strcmp(argv[1], "relay") == 0 ? relay_buf_open(argv[2]) : NULL;
	struct relay_ring *ring = buf ? NULL : relay_ring_open(argv[2]);
	if (!buf && !ring)
		return 1;
	for (unsigned n = 0;; n++) {
		char record[512];
		if (buf && writes)
			write_relay(buf, n);
		else if (buf)
			(strcmp(argv[4], "reset") ? read_relay : reset_relay)(buf);
		else if (writes)
			write_ring(ring, n);
		else
			(void)relay_ring_read(ring, record, sizeof(record), NULL);
	}
}
