/* SPDX-License-Identifier: MIT */
/* Cutting a stream of bytes into records, and writing them to a channel: the loop of relayctl write and run. */
#define _GNU_SOURCE
#include "buffer/write.h"
#include "channel/channel.h"
#include "ring/ring.h"
#include "store/remote_file.h"

#include <errno.h>
#include <limits.h>
#include <relayfs/split_store.h>
#include <string.h>

enum { PREFIX_BYTES = 4 };

/* The next record: its length, and the bytes before it. */
struct cut {
	size_t before, length;
	bool is_whole; /* all of it is there */
};

static size_t largest_of_rings(const struct relay_rings *rings)
{
	const struct relay_ring *ring = rings->ring[0];
	return ring->remote ? RELAY_REMOTE_RECORD_MAX : ring->largest;
}

static size_t largest_of_chan(const struct rchan *chan)
{
	const struct rchan_buf *buf = chan->bufs;
	return chan->remote ? RELAY_REMOTE_RECORD_MAX : buf->largest - (buf->is_timed ? RELAY_HEAD_BYTES : 0);
}

int relay_split_start(struct relay_split *split)
{
	if (!split->chan == !split->rings || split->by > RELAY_SPLIT_SEPARATED || split->waits > RELAY_SPLIT_ENDS ||
	    (split->by == RELAY_SPLIT_FIXED && !split->fixed) || split->separator > UCHAR_MAX)
		return -EINVAL;
	split->largest = split->chan ? largest_of_chan(split->chan) : largest_of_rings(split->rings);
	return 0;
}

static struct cut cut_separated(struct relay_split *split, int separator, const unsigned char *data, size_t left,
                                bool ends)
{
	const size_t searched = split->searched < left ? split->searched : left;
	const unsigned char *end = memchr(data + searched, separator, left - searched);
	struct cut cut = {.length = end ? (size_t)(end - data) + 1 : left, .is_whole = end || (ends && left)};
	split->searched = cut.is_whole ? 0 : left;
	return cut;
}

/* Whether a record's length is known before all of it is there. */
static bool has_length(const struct relay_split *split)
{
	return split->by == RELAY_SPLIT_FIXED || split->by == RELAY_SPLIT_PREFIXED;
}

static struct cut cut_next(struct relay_split *split, const unsigned char *data, size_t left, bool ends)
{
	uint32_t length;
	switch (split->by) {
	case RELAY_SPLIT_LINES:
		return cut_separated(split, '\n', data, left, ends);
	case RELAY_SPLIT_SEPARATED:
		return cut_separated(split, (int)split->separator, data, left, ends);
	case RELAY_SPLIT_FIXED:
		return (struct cut){.length = split->fixed, .is_whole = left >= split->fixed};
	default:
		if (left < PREFIX_BYTES)
			return (struct cut){.length = 0};
		memcpy(&length, data, sizeof(length));
		return (struct cut){
		    .before = PREFIX_BYTES, .length = length, .is_whole = left - PREFIX_BYTES >= length};
	}
}

/* Write a record. Returns 0 or the reason why it was refused, of rings with the errors of channels. */
static int write_record(struct relay_split *split, const void *data, size_t length)
{
	const bool waits = split->waits == RELAY_SPLIT_WAITS;
	/* A buffer has no empty records: relay_write() would ignore them. */
	if (split->chan && !length)
		split->result = -EINVAL;
	else if (split->chan)
		split->result =
		    waits ? relay_try_write(split->chan, data, length) : relay_inline_write(split->chan, data, length);
	else
		split->result =
		    relay_rings_output(split->rings, data, length, split->flags | (waits ? RELAY_RING_WILL_RETRY : 0));
	return split->result != -EAGAIN || split->chan ? split->result : length > split->largest ? -EMSGSIZE : -ENOSPC;
}

/* The record is too long. Have the channel count it, unless that needs all bytes of it, which are not there. */
static int refuse(struct relay_split *split, const void *data, const struct cut *cut)
{
	bool is_remote = split->chan ? split->chan->remote != NULL : split->rings->ring[0]->remote != NULL;
	int err = is_remote && !cut->is_whole ? 0 : write_record(split, data, cut->length);
	return err ? err : -EMSGSIZE;
}

/* Write as many whole records as one reservation takes, if nothing lies between them. Returns their bytes; 0: none was
 * written so. */
static size_t write_together(struct relay_split *split, const unsigned char *data, size_t left)
{
	if (split->by == RELAY_SPLIT_PREFIXED || !split->chan || !split->chan->is_shared)
		return 0;
	struct rchan_buf *buf = relay_chan_shared(split->chan);
	const size_t searched = split->searched;
	size_t room = relay_together_room(buf), length = 0;
	uint64_t n = 0;
	if (room > left)
		room = left;
	for (struct cut cut; length < room; length += cut.length, n++) {
		cut = cut_next(split, data + length, room - length, false);
		if (!cut.is_whole)
			break;
	}
	if (n < 2 || !relay_write_together(buf, data, length, n)) {
		split->searched = searched;
		return 0;
	}
	split->records += n;
	split->bytes += length;
	return length;
}

size_t relay_split_write(struct relay_split *split, const void *data, size_t length, int ends)
{
	const unsigned char *at = data, *end = at + length;
	split->error = 0;
	while (at < end) {
		size_t together = write_together(split, at, (size_t)(end - at));
		at += together;
		if (together)
			continue;
		struct cut cut = cut_next(split, at, (size_t)(end - at), ends);
		bool is_long = cut.length > split->largest;
		if (!cut.is_whole && !is_long)
			break;
		int err =
		    is_long ? refuse(split, at + cut.before, &cut) : write_record(split, at + cut.before, cut.length);
		if (!err) {
			split->records++;
			split->bytes += cut.length;
		} else if (err == -ENOSPC && split->waits == RELAY_SPLIT_LOSES) {
			split->full++;
		} else {
			split->error = err;
			split->length = cut.length;
			split->extent = cut.is_whole || has_length(split) ? cut.before + cut.length : 0;
			split->searched = 0;
			break;
		}
		at += cut.before + cut.length;
	}
	return (size_t)(at - (const unsigned char *)data);
}

long relay_split_all(struct relay_split *split, const void *data, size_t length)
{
	split->waits = RELAY_SPLIT_ENDS;
	int err = relay_split_start(split);
	if (err)
		return err;
	relay_split_write(split, data, length, 1);
	if (split->records || !split->error)
		return (long)split->records;
	return split->result ? split->result : split->error;
}
