/* SPDX-License-Identifier: MIT */
/* Taking the next data of a buffer, many pieces at once. */
#define _GNU_SOURCE
#include "apps/app_room.h"

#include "buffer/timed.h"

#include <stdlib.h>
#include <string.h>

/* How much is taken at once: no more than TAKEN_MAX, and no more than a part of the buffer, unless that is little. */
enum { TAKEN_MAX = 8 << 20, TAKEN_SMALL = 1 << 20, PARTS = 4, N_SPANS = 1024 };

int relay_app_room_open(struct app_room *room, size_t size, bool takes)
{
	void *bytes;
	if (posix_memalign(&bytes, APP_BLOCK_BYTES, size + APP_BLOCK_BYTES))
		return -ENOMEM;
	room->bytes = bytes;
	room->size = size;
	room->spans = takes ? malloc(N_SPANS * sizeof(*room->spans)) : NULL;
	return takes && !room->spans ? -ENOMEM : 0;
}

void relay_app_room_close(struct app_room *room)
{
	free(room->bytes);
	free(room->spans);
}

static size_t least(size_t a, size_t b)
{
	return a < b ? a : b;
}

size_t relay_app_room_bytes(const struct rchan_buf *buf)
{
	size_t all = buf->subbuf_size * buf->n_subbufs;
	size_t part = least(TAKEN_MAX, all / PARTS), small = least(TAKEN_SMALL, all);
	size_t size = part > small ? part : small;
	return size > buf->subbuf_size ? size : buf->subbuf_size;
}

unsigned char *relay_app_room_at(const struct app_room *room, off_t offset)
{
	return room->bytes + (size_t)offset % APP_BLOCK_BYTES;
}

/* Return how many of the first spans that are planned to be consumed are not in a sub-buffer in which the plan ends. */
static int n_finished(const struct rchan_buf *buf, const struct relay_span *spans, int n)
{
	size_t offset = relay_pos_offset(buf, buf->plan.to.position);
	const unsigned char *end = relay_pos_data(buf, buf->plan.to.position);
	if (!offset)
		return n;
	for (; n; n--) {
		const unsigned char *data = spans[n - 1].data;
		if (data < end - offset || data >= end - offset + buf->subbuf_size)
			break;
	}
	return n;
}

/* Plan to consume the first `left` of n spans only. false: they are overwritten, or there is none. */
static bool leave(struct rchan_buf *buf, struct relay_span *spans, int left, int *n, size_t *total)
{
	size_t length = 0;
	for (int i = 0; i < left; i++)
		length += spans[i].length;
	return left == *n || (left && relay_consume_shorten(buf, length, spans, n, total));
}

/* Copy planned spans. Returns the number of bytes; 0: they were overwritten meanwhile. */
static size_t copy(struct rchan_buf *buf, const struct relay_span *spans, int n, size_t total, void *to, size_t size)
{
	size_t raw = 0, done = 0;
	if (buf->is_timed) {
		done = relay_timed_take(spans, (size_t)n, false, to, size, &raw);
	} else {
		for (int i = 0; i < n; done += spans[i++].length)
			memcpy((char *)to + done, spans[i].data, spans[i].length);
		raw = done;
	}
	return raw != total || relay_consume_valid(buf) ? 0 : done;
}

ssize_t relay_app_room_take(struct app_room *room, struct rchan_buf *buf, off_t offset, bool finished_only)
{
	size_t total, done = 0;
	int n = buf->is_timed ? relay_consume_whole(buf, room->size, 0, room->spans, N_SPANS, &total)
	                      : relay_consume_begin(buf, room->size, room->spans, N_SPANS, &total);
	if (n <= 0)
		return n;
	if (leave(buf, room->spans, finished_only ? n_finished(buf, room->spans, n) : n, &n, &total))
		done = copy(buf, room->spans, n, total, relay_app_room_at(room, offset), room->size);
	if (!done)
		relay_consume_abort(buf);
	return (ssize_t)done;
}
