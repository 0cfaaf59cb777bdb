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
 *
 * Whole records are consumed before the reply, as Python does it, because what a ring has given it cannot take back:
 *
 *     taking.unique, .fh, .place      nothing is consumed
 *     the records are copied, taken   the consumer's position tells whether they are consumed: then the copy is the answer
 *     noted.next, .unique, the reply, noted.now, .unique = 0, as above
 */
#define _GNU_SOURCE
#include "lane.h"

#include "protocol.h"
#include "reading.h"
#include "tap.h"

#include <errno.h>
#include <relayfs/ring_store.h>
#include <string.h>
#include <sys/uio.h>

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

/* The reply to a READ was sent, or refused with an errno: what was noted counts if the kernel has accepted it. */
static void note_sent(struct relay_lane *lane, ssize_t sent)
{
	if (sent < 0)
		lane->is_off = errno != ENOENT; /* the request was aborted */
	if (!lane->noted)
		return;
	if (sent >= 0)
		settle(lane->noted);
	else
		lane->noted->unique = 0;
}

/* 1: the READ was answered with bytes; 0: Python is to answer it. */
static int answer_bytes(int fd, struct relay_lane *lane, uint64_t unique, size_t size)
{
	uint64_t end;
	ssize_t got = relay_tap_read(unique, lane->buf, lane->number, size, (int)lane->overwrite, &end);
	struct fuse_out_header out = {.unique = unique};
	const struct iovec header = {.iov_base = &out, .iov_len = sizeof(out)};
	if (got <= 0)
		return 0;
	if (lane->noted && !note_next(lane, unique, (uint64_t)got, end)) {
		relay_reading_forget();
		return 0;
	}
	note_sent(lane, relay_reading_send(fd, &header));
	return 1;
}

/* As answer_bytes(), with whole records. */
static int answer_records(int fd, struct relay_lane *lane, uint64_t unique, size_t size)
{
	struct relay_lane_taking *taking = lane->taking;
	struct relay_lane_noted *noted = lane->noted;
	taking->taken.length = 0;
	keep_order();
	taking->unique = unique;
	taking->fh = lane->fh;
	taking->place = RELAY_LANE_AREA;
	keep_order();
	ssize_t got = lane->ring ? relay_ring_read_framed(lane->ring, lane->area, size, 0)
	                         : relay_buf_read_records(lane->buf, lane->area, size, 0);
	if (got <= 0)
		return 0;
	noted->next = noted->now;
	noted->next.end += (uint64_t)got;
	keep_order();
	noted->unique = unique;
	keep_order();
	struct fuse_out_header out = {.len = (uint32_t)(sizeof(out) + (size_t)got), .unique = unique};
	const struct iovec pieces[] = {{.iov_base = &out, .iov_len = sizeof(out)},
	                               {.iov_base = lane->area, .iov_len = (size_t)got}};
	note_sent(lane, writev(fd, pieces, 2));
	return 1;
}

int relay_lane_answer(int fd, const struct fuse_in_header *in, size_t length)
{
	const struct fuse_read_in *read_in = (const void *)(in + 1);
	struct relay_lane *lane;
	size_t size;
	if (length < sizeof(*in) + sizeof(*read_in) || in->opcode != FUSE_READ || in->unique & TAP_RESENT)
		return 0;
	lane = *find(read_in->fh);
	if (!lane || lane->is_off || *lane->is_told || !(read_in->read_flags & FUSE_READ_LOCKOWNER))
		return 0;
	size = read_in->size < lane->most ? read_in->size : lane->most;
	if (lane->noted)
		settle(lane->noted);
	if (lane->taking)
		return answer_records(fd, lane, in->unique, size);
	if (lane->noted && read_in->offset != lane->noted->now.end)
		return 0;
	return answer_bytes(fd, lane, in->unique, size);
}
