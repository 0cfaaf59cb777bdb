/* SPDX-License-Identifier: MIT */
/* Reading a buffer for a FUSE READ: the bytes are sent from the buffer's memory, or from a copy if producers may overwrite
 * them or if they are in too many pieces. */
#define _GNU_SOURCE
#include "reading.h"

#include "handover.h"
#include "tap.h"

#include <errno.h>
#include <linux/fuse.h>
#include <relayfs/store.h>
#include <stdlib.h>
#include <string.h>

enum {
	READING_IOV_MAX = 1024,      /* pieces of one writev(2); the first is the header */
	READING_SPANS_MAX = 1 << 16, /* pieces of one read: many if sub-buffers are small */
	READING_LAPPED_TRIES = 8,    /* to copy bytes before producers overwrite them */
	READING_LAPPED_FEWER = 16    /* each try has so many times fewer pieces, and at least one */
};

/* The reply: `total` bytes in pieces[1 .. n_pieces]; relay_reading_send() stores the header in pieces[0]. */
static struct {
	uint64_t unique; /* 0: there is none */
	struct rchan_buf *buf;
	struct relay_handover_reply noted;
	size_t total;
	size_t n_pieces;
	struct iovec pieces[READING_IOV_MAX];
} reply;

static struct relay_span *spans;
static unsigned char *copies; /* copies_room bytes, for replies that cannot be sent from the buffer's memory */
static size_t copies_room;

int relay_reading_is_of(uint64_t unique)
{
	return reply.unique == unique;
}

void relay_reading_forget(void)
{
	if (reply.unique)
		relay_consume_abort(reply.buf);
	reply.unique = 0;
}

ssize_t relay_reading_send(int fd, const struct iovec *header)
{
	struct fuse_out_header *out = header->iov_base;
	ssize_t sent;
	int error;
	out->len = (uint32_t)(sizeof(*out) + reply.total);
	reply.pieces[0] = *header;
	relay_handover_begin_reply(reply.noted);
	sent = writev(fd, reply.pieces, (int)reply.n_pieces + 1);
	error = errno;
	if (sent >= 0)
		relay_consume_end(reply.buf);
	else
		relay_consume_abort(reply.buf);
	relay_handover_end_reply();
	reply.unique = 0;
	errno = error;
	return sent;
}

/* Allocate `spans`, and `copies` for max_bytes. 1, or 0: no memory. */
static int allocate_memory(size_t max_bytes)
{
	if (!spans)
		spans = malloc(READING_SPANS_MAX * sizeof(*spans));
	if (copies_room < max_bytes) {
		free(copies);
		copies = malloc(max_bytes);
		copies_room = copies ? max_bytes : 0;
	}
	return spans && copies;
}

/* Return how many of the spans have `total` bytes. */
static size_t count_spans(size_t total)
{
	size_t n = 0;
	for (size_t sum = 0; sum < total; n++)
		sum += spans[n].length;
	return n;
}

static void reply_with_spans(size_t n)
{
	for (size_t i = 0; i < n; i++) {
		reply.pieces[i + 1].iov_base = (void *)spans[i].data;
		reply.pieces[i + 1].iov_len = spans[i].length;
	}
	reply.n_pieces = n;
}

static void reply_with_copy(size_t n)
{
	size_t length = 0;
	for (size_t i = 0; i < n; i++) {
		memcpy(copies + length, spans[i].data, spans[i].length);
		length += spans[i].length;
	}
	reply.pieces[1].iov_base = copies;
	reply.pieces[1].iov_len = length;
	reply.n_pieces = 1;
}

/* As relay_tap_read(), with at most max_pieces pieces. -EOVERFLOW: producers have overwritten the bytes meanwhile. */
static ssize_t try_read(struct rchan_buf *buf, size_t max_bytes, size_t max_pieces, int overwrite, uint64_t *end)
{
	size_t total = 0;
	size_t n;
	int result = relay_consume_begin_behind(buf, 0, max_bytes, spans, max_pieces, &total, end);
	if (result < 0 || !total)
		return result < 0 ? result : 0;
	n = count_spans(total);
	if (!overwrite && n < READING_IOV_MAX) {
		reply_with_spans(n);
		return (ssize_t)total;
	}
	reply_with_copy(n);
	result = overwrite ? relay_consume_valid(buf) : 0;
	if (result < 0) {
		relay_consume_abort(buf);
		return result;
	}
	return (ssize_t)total;
}

ssize_t relay_tap_read(uint64_t unique, struct rchan_buf *buf, uint64_t number, size_t max_bytes, int overwrite,
                       uint64_t *end)
{
	ssize_t got = -EOVERFLOW;
	size_t max_pieces = READING_SPANS_MAX;
	relay_reading_forget();
	if (!allocate_memory(max_bytes))
		return -ENOMEM;
	/* The less is copied, the less likely producers overwrite it meanwhile. So each try has fewer pieces; it does
	 * not have fewer bytes, because the rest of a piece that is read in part may be overwritten, which splits a
	 * record. */
	for (int i = 0; i < READING_LAPPED_TRIES && got == -EOVERFLOW; i++) {
		got = try_read(buf, max_bytes, max_pieces, overwrite, end);
		max_pieces = max_pieces > READING_LAPPED_FEWER ? max_pieces / READING_LAPPED_FEWER : 1;
	}
	if (got == -EOVERFLOW)
		return -EAGAIN;
	if (got > 0) {
		reply.unique = unique;
		reply.buf = buf;
		reply.noted = (struct relay_handover_reply){unique, number, *end};
		reply.total = (size_t)got;
	}
	return got;
}

void relay_tap_read_copy(void *data, size_t length, size_t behind)
{
	unsigned char *to = (unsigned char *)data + length;
	if (!reply.unique)
		return;
	for (size_t i = reply.n_pieces; i && length; i--) {
		const struct iovec *piece = &reply.pieces[i];
		size_t skipped = piece->iov_len < behind ? piece->iov_len : behind;
		size_t left = piece->iov_len - skipped;
		size_t n = left < length ? left : length;
		behind -= skipped;
		to -= n;
		length -= n;
		memcpy(to, (const unsigned char *)piece->iov_base + left - n, n);
	}
}

/* As relay_tap_peek(). -EOVERFLOW: producers have overwritten the bytes meanwhile. */
static ssize_t try_peek(struct rchan_buf *buf, uint64_t skip, size_t max_bytes, unsigned char *to, uint64_t *end)
{
	size_t total = 0;
	int result = relay_consume_begin_behind(buf, skip, max_bytes, spans, READING_SPANS_MAX, &total, end);
	if (result < 0 || !total)
		return result < 0 ? result : 0;
	for (size_t i = 0; i < (size_t)result; to += spans[i++].length)
		memcpy(to, spans[i].data, spans[i].length);
	result = relay_consume_valid(buf);
	relay_consume_abort(buf);
	return result < 0 ? result : (ssize_t)total;
}

ssize_t relay_tap_peek(struct rchan_buf *buf, uint64_t skip, size_t max_bytes, void *data, uint64_t *end)
{
	ssize_t got = -EOVERFLOW;
	relay_reading_forget();
	if (!allocate_memory(max_bytes))
		return -ENOMEM;
	for (int i = 0; i < READING_LAPPED_TRIES && got == -EOVERFLOW; i++)
		got = try_peek(buf, skip, max_bytes, data, end);
	return got == -EOVERFLOW ? -EAGAIN : got;
}
