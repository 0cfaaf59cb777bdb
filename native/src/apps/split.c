/* SPDX-License-Identifier: MIT */
/* Cutting a stream of bytes into records, and writing them to a channel: the loop of relayctl write and run. */
#define _GNU_SOURCE
#include "base/cpu.h"
#include "channel/channel.h"
#include "ring/ring.h"
#include "store/remote_file.h"

#include <errno.h>
#include <limits.h>
#include <relayfs/split_store.h>
#include <string.h>

/* MOST_FOUND: so many records are found at once. */
enum { PREFIX_BYTES = 4, MOST_FOUND = 256 };

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

/* Find records that are there and lie one after the other: store their lengths, at most MOST_FOUND. Returns how many; 0: maybe there
 * is one all the same, which cut_next() finds. */
static size_t find_many(struct relay_split *split, const unsigned char *data, size_t left, size_t *lengths)
{
	const unsigned char separator = split->by == RELAY_SPLIT_LINES ? '\n' : (unsigned char)split->separator;
	size_t n = 0, begin = 0, at = split->searched;
	if (split->by == RELAY_SPLIT_PREFIXED)
		return 0;
	if (split->by == RELAY_SPLIT_FIXED) {
		for (; n < MOST_FOUND && left - begin >= split->fixed; begin += split->fixed)
			lengths[n++] = split->fixed;
		return n;
	}
	for (; at + RELAY_COMPARED <= left && n + RELAY_COMPARED <= MOST_FOUND; at += RELAY_COMPARED)
		for (uint64_t found = relay_where_equal(data + at, separator); found; found &= found - 1) {
			size_t end = at + (size_t)__builtin_ctzll(found) + 1;
			lengths[n++] = end - begin;
			begin = end;
		}
	split->searched = at - begin;
	return n;
}

/* Write the record of a cut, or have it counted as refused. Returns the bytes that it takes; 0: split->error says why it was not
 * written. */
static size_t write_cut(struct relay_split *split, const unsigned char *data, const struct cut *cut)
{
	const unsigned char *record = data + cut->before;
	int err = cut->length > split->largest ? refuse(split, record, cut) : write_record(split, record, cut->length);
	if (!err) {
		split->records++;
		split->bytes += cut->length;
	} else if (err == -ENOSPC && split->waits == RELAY_SPLIT_LOSES) {
		split->full++;
	} else {
		split->error = err;
		split->length = cut->length;
		split->extent = cut->is_whole || has_length(split) ? cut->before + cut->length : 0;
		split->searched = 0;
		return 0;
	}
	return cut->before + cut->length;
}

/* Write n records that lie one after the other, up to the first that is refused. Returns their bytes. */
static size_t write_many(struct relay_split *split, const unsigned char *data, const size_t *lengths, size_t n)
{
	const unsigned char *at = data;
	while (n && !split->error) {
		const unsigned char *begin = at;
		size_t together = split->chan ? relay_chan_write_together(split->chan, &at, lengths, n) : 0;
		split->records += together;
		split->bytes += (size_t)(at - begin);
		if (!together) {
			at += write_cut(split, at, &(struct cut){.length = *lengths, .is_whole = true});
			together = 1;
		}
		lengths += together;
		n -= together;
	}
	return (size_t)(at - data);
}

size_t relay_split_write(struct relay_split *split, const void *data, size_t length, int ends)
{
	const unsigned char *at = data, *end = at + length;
	size_t lengths[MOST_FOUND];
	split->error = 0;
	while (at < end && !split->error) {
		size_t n = find_many(split, at, (size_t)(end - at), lengths);
		at += write_many(split, at, lengths, n);
		if (n)
			continue;
		struct cut cut = cut_next(split, at, (size_t)(end - at), ends);
		if (!cut.is_whole && cut.length <= split->largest)
			break;
		at += write_cut(split, at, &cut);
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
