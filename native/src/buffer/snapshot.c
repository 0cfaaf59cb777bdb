/* SPDX-License-Identifier: MIT */
/* Packets for who looks on: a flight recorder's reader, which stops nobody and consumes nothing. */
#define _GNU_SOURCE
#include "buffer/consume.h"
#include "buffer/head.h"
#include "buffer/packet.h"
#include "buffer/subbuf_start.h"

#include <string.h>

enum { BITS = 8, COPY_TRIES = 100, MOST_PIECES = RELAY_N_CLAIMS + 2 };

/* 0: they are longer than `size`, which they were not when the packet's head was made. */
static size_t gather(unsigned char *to, size_t size, const struct relay_span *spans, int n)
{
	size_t length = 0;
	for (int i = 0; i < n; i++) {
		if (spans[i].length > size - length)
			return 0;
		memcpy(to + length, spans[i].data, spans[i].length);
		length += spans[i].length;
	}
	return length;
}

static uint64_t n_holes(const struct relay_consumer *consumer)
{
	return consumer->torn_records + consumer->discarded_records;
}

/* The first sub-buffer whose start the consumer has not passed. */
static uint64_t first_untouched(const struct rchan_buf *buf, const struct relay_consumer *consumer)
{
	uint64_t number = relay_pos_number(buf, consumer->position);
	return number + (consumer->position != relay_pos_start(buf, number));
}

/*
 * The first sub-buffer from *number on that can be copied whole, and the consumer's state at that moment. What the consumer
 * has passed stands, in either mode, until writers enter it. But he has freed the claims that told of holes in it, so, if
 * there were any, only what he has not touched is copied. 0 or -EBADMSG.
 */
static int find_start(struct rchan_buf *buf, uint64_t *number, struct relay_consumer *consumer)
{
	uint64_t head, second;
	int err = relay_consumer_read(buf, consumer);
	if (err || relay_head_checked(buf, &head, &second))
		return -EBADMSG;
	if (n_holes(consumer) && *number < first_untouched(buf, consumer))
		*number = first_untouched(buf, consumer);
	if (relay_is_lapped(buf, head, *number) && *number <= relay_pos_number(buf, head))
		*number = relay_oldest(buf, head);
	return 0;
}

/* Is a copy of `number` still good? Not if a hole was passed in it meanwhile. */
static bool is_sound(struct rchan_buf *buf, uint64_t number, const struct relay_consumer *before)
{
	struct relay_consumer now;
	if (relay_consume_stands(buf, number) || relay_consumer_read(buf, &now))
		return false;
	return n_holes(&now) == n_holes(before) || number >= first_untouched(buf, &now);
}

/* One look at the sub-buffer from which on there is something to copy. */
struct look {
	struct relay_consumer consumer; /* before the look */
	struct relay_consumer state;    /* one that has passed the sub-buffer */
	struct relay_packet packet;     /* `spans` begin with it */
	struct relay_span spans[MOST_PIECES];
	uint64_t start_records; /* how many records were written before the sub-buffer */
};

/* `number` moves on to the sub-buffer. Returns how many spans it has; 0: it is not finished; -EAGAIN: look once more. */
static int look_at(struct rchan_buf *buf, uint64_t *number, struct look *at)
{
	if (find_start(buf, number, &at->consumer))
		return -EBADMSG;
	at->state = (struct relay_consumer){.position = relay_pos_start(buf, *number)};
	int n = relay_consume_look(buf, &at->state, &at->packet, &at->start_records, at->spans, MOST_PIECES);
	return n == -EINPROGRESS ? -EAGAIN : n;
}

ssize_t relay_packet_copy(struct rchan_buf *buf, uint64_t *number, uint64_t *records, void *to, size_t size)
{
	if (!buf->packets)
		return -EINVAL;
	for (int i = 0; i < COPY_TRIES; i++) {
		struct look at;
		int n = look_at(buf, number, &at);
		if (n == -EAGAIN)
			continue;
		if (n <= 0)
			return n;
		if (at.packet.packet_size / BITS > size)
			return -EMSGSIZE;
		/* Torn ones are among those that `state` passed; what was overwritten before is in no packet. */
		uint64_t torn = at.state.torn_records + at.state.discarded_records;
		at.packet.events_discarded += at.start_records - *records;
		size_t length = gather(to, size, at.spans, n);
		if (!is_sound(buf, *number, &at.consumer))
			continue;
		if (!length || relay_damage_below(&buf->damage, "the number of the packet's first record", 0,
		                                  at.start_records, *records))
			return -EBADMSG;
		*records += at.state.records - at.start_records - torn;
		return (ssize_t)length;
	}
	return relay_damage_say(&buf->damage, "relay_control.head does not come to rest");
}

/* How many of the records before the sub-buffer are lost, as far as its consumer knows: what he has been given is not. */
static uint64_t lost_before(const struct rchan_buf *buf, const struct relay_consumer *consumer, uint64_t number,
                            uint64_t start_records)
{
	bool is_passed = number <= first_untouched(buf, consumer);
	uint64_t unread = is_passed || start_records < consumer->records ? 0 : start_records - consumer->records;
	return consumer->overwritten_records + n_holes(consumer) + unread;
}

int relay_packet_start(struct rchan_buf *buf, uint64_t *number, uint64_t *records)
{
	if (!buf->packets)
		return -EINVAL;
	for (int i = 0; i < COPY_TRIES; i++) {
		struct look at;
		*number = 0;
		int n = look_at(buf, number, &at);
		if (n == -EAGAIN || (n > 0 && !is_sound(buf, *number, &at.consumer)))
			continue;
		if (n < 0)
			return n;
		/* Nothing is finished: the next packet begins where the consumer is. */
		uint64_t start = n ? at.start_records : at.consumer.records;
		uint64_t lost = lost_before(buf, &at.consumer, *number, start);
		if (relay_damage_above(&buf->damage, "the number of records lost before a packet", 0, lost, start))
			return -EBADMSG;
		*records = start - lost;
		return 0;
	}
	return relay_damage_say(&buf->damage, "relay_control.head does not come to rest");
}
