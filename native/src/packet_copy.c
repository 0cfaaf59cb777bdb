/* SPDX-License-Identifier: MIT */
/* Packets for who looks on: a flight recorder's reader, which stops nobody and consumes nothing. */
#define _GNU_SOURCE
#include "consume.h"
#include "packet.h"

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

/* From the oldest that stands, if number has been overwritten. 0 or -EBADMSG. */
static int start_at(struct rchan_buf *buf, uint64_t number, struct relay_consumer *state)
{
	*state = (struct relay_consumer){.position = relay_pos_start(buf, number)};
	return relay_consumer_catch_up(buf, state);
}

ssize_t relay_packet_copy(struct rchan_buf *buf, uint64_t *number, uint64_t *records, void *to, size_t size)
{
	if (!buf->packets)
		return -EINVAL;
	for (int i = 0; i < COPY_TRIES; i++) {
		struct relay_consumer state;
		struct relay_packet packet;
		struct relay_span spans[MOST_PIECES];
		uint64_t start_records;
		int err = start_at(buf, *number, &state);
		if (err)
			return err;
		*number = relay_pos_number(buf, state.position);
		int n = relay_consume_look(buf, &state, &packet, &start_records, spans, MOST_PIECES);
		if (n == -EAGAIN || n == -EINPROGRESS)
			continue;
		if (n <= 0)
			return n;
		if (packet.packet_size / BITS > size)
			return -EMSGSIZE;
		/* Torn ones are among those that `state` passed; what was overwritten before is in no packet. */
		uint64_t torn = state.torn_records + state.discarded_records;
		packet.events_discarded += start_records - *records;
		size_t length = gather(to, size, spans, n);
		if (relay_consume_stands(buf, *number) != 0)
			continue;
		if (!length || relay_damage_below(&buf->damage, "the number of the packet's first record", 0,
		                                  start_records, *records))
			return -EBADMSG;
		*records += state.records - start_records - torn;
		return (ssize_t)length;
	}
	return relay_damage_say(&buf->damage, "relay_control.head does not come to rest");
}
