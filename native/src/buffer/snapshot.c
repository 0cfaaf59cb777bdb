/* SPDX-License-Identifier: MIT */
/* Copying packets without consuming them and without delaying writers or readers, for snapshots of a flight
 * recorder. Declared in <relayfs/trace_store.h>. */
#define _GNU_SOURCE
#include "buffer/consume.h"
#include "buffer/head.h"
#include "buffer/packet.h"
#include "buffer/subbuf_start.h"

#include <string.h>

enum { BITS = 8, COPY_TRIES = 100, MOST_PIECES = RELAY_N_CLAIMS + 2 };

/* Copy the spans into one piece, and return its length; 0 if they are longer than `size`, which means that the
 * memory has changed since the packet's header was made. */
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

/*
 * Move *number to the first sub-buffer from there on that can be copied as a whole, and read the consumer's state.
 * Consumed data stay in memory until writers enter the sub-buffer, so they can be copied in both modes. But the
 * consumer has freed the claims that were holes there; so if it has passed any hole, only sub-buffers of which it has
 * consumed nothing are copied. Returns 0 or -EBADMSG.
 */
static int find_start(struct rchan_buf *buf, uint64_t *number, struct relay_consumer *consumer)
{
	uint64_t head, second;
	int err = relay_consumer_read(buf, consumer);
	if (err || relay_head_checked(buf, &head, &second))
		return -EBADMSG;
	if (relay_n_holes(consumer) && *number < relay_first_untouched(buf, consumer))
		*number = relay_first_untouched(buf, consumer);
	if (relay_is_lapped(buf, head, *number) && *number <= relay_pos_number(buf, head))
		*number = relay_oldest(buf, head);
	return 0;
}

/* True if sub-buffer `number` was not overwritten while it was copied, and the consumer has
 * passed no hole in it meanwhile. */
static bool copy_is_sound(struct rchan_buf *buf, uint64_t number, const struct relay_consumer *before)
{
	struct relay_consumer now;
	if (relay_consume_stands(buf, number) || relay_consumer_read(buf, &now))
		return false;
	return relay_n_holes(&now) == relay_n_holes(before) || number >= relay_first_untouched(buf, &now);
}

/* What find_packet() finds out about one sub-buffer. */
struct found {
	struct relay_consumer consumer; /* before the sub-buffer was read */
	struct relay_consumer state;    /* the state of a consumer that has read just this sub-buffer */
	struct relay_packet packet;     /* its header, to which the first span points */
	struct relay_span spans[MOST_PIECES];
	uint64_t start_records; /* records written before the sub-buffer */
};

/* Describe the first sub-buffer from *number on that can be copied, and store its number there. Returns the number
 * of spans; 0: it is not finished; -EAGAIN: it changed meanwhile, call again; -EBADMSG. */
static int find_packet(struct rchan_buf *buf, uint64_t *number, struct found *at)
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
		struct found at;
		int n = find_packet(buf, number, &at);
		if (n == -EAGAIN)
			continue;
		if (n <= 0)
			return n;
		if (at.packet.packet_size / BITS > size)
			return -EMSGSIZE;
		/* Holes are among the records that `state` has passed. Records that were overwritten before this
		 * sub-buffer are in no packet. */
		uint64_t torn = at.state.torn_records + at.state.discarded_records;
		at.packet.events_discarded += at.start_records - *records;
		size_t length = gather(to, size, at.spans, n);
		if (!copy_is_sound(buf, *number, &at.consumer))
			continue;
		if (!length || relay_damage_below(&buf->damage, "the number of the packet's first record", 0,
		                                  at.start_records, *records))
			return -EBADMSG;
		*records += at.state.records - at.start_records - torn;
		return (ssize_t)length;
	}
	return relay_damage_say(&buf->damage, "relay_control.head keeps changing");
}

/* The number of records before sub-buffer `number` that are lost to a reader that starts there, by the consumer's
 * state. Records that the consumer has returned are not lost. */
static uint64_t lost_before(const struct rchan_buf *buf, const struct relay_consumer *consumer, uint64_t number,
                            uint64_t start_records)
{
	bool is_passed = number <= relay_first_untouched(buf, consumer);
	uint64_t unread = is_passed || start_records < consumer->records ? 0 : start_records - consumer->records;
	return consumer->overwritten_records + relay_n_holes(consumer) + unread;
}

int relay_packet_start(struct rchan_buf *buf, uint64_t *number, uint64_t *records)
{
	if (!buf->packets)
		return -EINVAL;
	for (int i = 0; i < COPY_TRIES; i++) {
		struct found at;
		*number = 0;
		int n = find_packet(buf, number, &at);
		if (n == -EAGAIN || (n > 0 && !copy_is_sound(buf, *number, &at.consumer)))
			continue;
		if (n < 0)
			return n;
		/* If no sub-buffer is finished, the next packet starts where the consumer is. */
		uint64_t start = n ? at.start_records : at.consumer.records;
		uint64_t lost = lost_before(buf, &at.consumer, *number, start);
		if (relay_damage_above(&buf->damage, "the number of records lost before a packet", 0, lost, start))
			return -EBADMSG;
		*records = start - lost;
		return 0;
	}
	return relay_damage_say(&buf->damage, "relay_control.head keeps changing");
}
