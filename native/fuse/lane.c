/* SPDX-License-Identifier: MIT */
/*
 * A READ that is answered here takes these steps. Whichever of them a server that is killed has taken, the next one can
 * tell what the program has got, as the kernel knows whether it has an answer:
 *
 *     the bytes are found      nothing is noted: the kernel asks again, and the READ begins anew
 *     the bytes are kept       behind those that were kept before, which stay
 *     noted.next, .unique      not answered: `now` counts, and the bytes stay unread
 *     the reply                answered: `next` counts, and the bytes are consumed, by this server or the next one
 *                              (handover.h)
 *     noted.now, .unique = 0
 */
#define _GNU_SOURCE
#include "lane.h"

#include "protocol.h"
#include "reading.h"
#include "tap.h"

#include <errno.h>
#include <string.h>

enum { LANE_HEADS = 1024 };

static struct relay_lane *heads[LANE_HEADS];

static struct relay_lane **find(uint64_t fh)
{
	struct relay_lane **lane = &heads[fh % LANE_HEADS];
	while (*lane && (*lane)->fh != fh)
		lane = &(*lane)->next;
	return lane;
}

void relay_tap_lane_open(struct relay_lane *lane)
{
	struct relay_lane **head = &heads[lane->fh % LANE_HEADS];
	lane->next = *head;
	*head = lane;
}

void relay_tap_lane_close(uint64_t fh)
{
	struct relay_lane **lane = find(fh);
	if (*lane)
		*lane = (*lane)->next;
}

/* The compiler must keep the order of the stores before and behind; the next server loads them after this one has ended. */
static void keep_order(void)
{
	__asm__ volatile("" : : : "memory");
}

/* Let `next` be the place, if the READ that it depends on was answered: all before this one were. */
static void settle(struct relay_lane_noted *noted)
{
	if (!noted->unique)
		return;
	noted->now = noted->next;
	keep_order();
	noted->unique = 0;
	keep_order();
}

/* Copy the last n bytes of the reply behind those that are kept, where the next ones of `place` are. */
static void keep(const struct relay_lane *lane, const struct relay_lane_place *place, uint64_t n)
{
	uint64_t at = place->kept_end % lane->kept_room;
	uint64_t first = n < lane->kept_room - at ? n : lane->kept_room - at;
	relay_tap_read_copy(lane->kept + at, first, n - first);
	if (first < n)
		relay_tap_read_copy(lane->kept, n - first, 0);
}

/* Note where the reader will be once it has `got` bytes, which end at a stream position. 0: Python has to do that. */
static int note_next(const struct relay_lane *lane, uint64_t unique, uint64_t got, uint64_t position)
{
	struct relay_lane_noted *noted = lane->noted;
	struct relay_lane_place *next = &noted->next;
	const struct relay_lane_place now = noted->now;
	uint64_t n = got < lane->large || !now.n_kept ? got : lane->kept_of_large;
	n = n < lane->kept_most ? n : lane->kept_most;
	/* Fewer bytes were passed than before: the buffer was reset. */
	if (position - got < now.consumed || n + now.n_kept > lane->kept_room)
		return 0;
	keep(lane, &now, n);
	next->end = now.end + got;
	next->consumed = position;
	next->kept_end = now.kept_end + n;
	if (n == got) /* what was kept before goes on in it */
		n = n + now.n_kept < lane->kept_most ? n + now.n_kept : lane->kept_most;
	next->n_kept = n;
	keep_order();
	noted->unique = unique;
	keep_order();
	return 1;
}

/* Send the reply to a READ; what was noted counts if the kernel accepts it. */
static void reply(int fd, struct relay_lane *lane, uint64_t unique)
{
	struct fuse_out_header out = {.unique = unique};
	const struct iovec header = {.iov_base = &out, .iov_len = sizeof(out)};
	ssize_t sent = relay_reading_send(fd, &header);
	if (sent < 0)
		lane->is_off = errno != ENOENT; /* the request was aborted */
	if (!lane->noted)
		return;
	if (sent >= 0)
		settle(lane->noted);
	else
		lane->noted->unique = 0;
}

int relay_lane_answer(int fd, const struct fuse_in_header *in, size_t length)
{
	const struct fuse_read_in *read_in = (const void *)(in + 1);
	struct relay_lane *lane;
	uint64_t end;
	ssize_t got;
	if (length < sizeof(*in) + sizeof(*read_in) || in->opcode != FUSE_READ || in->unique & TAP_RESENT)
		return 0;
	lane = *find(read_in->fh);
	if (!lane || lane->is_off || *lane->is_told || !(read_in->read_flags & FUSE_READ_LOCKOWNER))
		return 0;
	if (lane->noted) {
		settle(lane->noted);
		if (read_in->offset != lane->noted->now.end)
			return 0;
	}
	got = relay_tap_read(in->unique, lane->buf, lane->number,
	                     read_in->size < lane->most ? read_in->size : lane->most, (int)lane->overwrite, &end);
	if (got <= 0)
		return 0;
	if (lane->noted && !note_next(lane, in->unique, (uint64_t)got, end)) {
		relay_reading_forget();
		return 0;
	}
	reply(fd, lane, in->unique);
	return 1;
}
