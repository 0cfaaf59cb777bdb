/* SPDX-License-Identifier: MIT */
/*
 * Sub-buffers as CTF packets.
 *
 *     memory                 |(reserved)|event|event|event|....|(reserved)|event ...
 *     readers get            |  packet  |event|event|event|    |  packet  |event ...
 *
 * Writers only keep room for the head: all that it says stands in the ledgers, which a switch changes in one step. So a
 * packet is right whoever reads it, also when its writer died in the middle of something.
 */
#define _GNU_SOURCE
#include "packet.h"

#include "begin.h"

enum { BITS = 8 };

void relay_packet_say(const struct rchan_buf *buf, struct relay_packet *packet, uint64_t number, uint64_t head,
                      uint64_t bytes, uint64_t more)
{
	const struct relay_subbuf *ledger = relay_pos_ledger(buf, relay_pos_start(buf, number));
	const struct relay_subbuf *next = relay_pos_ledger(buf, relay_pos_start(buf, number + 1));
	/* Until the next one has begun, what is lost is lost behind this one, and it may end now. */
	bool has_next = number + 1 < relay_pos_number(buf, head) || relay_has_begun(buf, head);
	/* Relaxed: published by head, which the caller loaded before and checks after. */
	*packet = (struct relay_packet){
	    .magic = RELAY_PACKET_MAGIC,
	    .stream_instance_id = buf->cpu,
	    .packet_size = bytes * BITS,
	    .events_discarded =
		(has_next ? __atomic_load_n(&next->start_lost, __ATOMIC_RELAXED) : relay_lost(buf)) + more,
	    .packet_seq_num = number,
	    .timestamp_end =
		has_next ? __atomic_load_n(&next->start_clock, __ATOMIC_RELAXED) : relay_clock_now(buf->timestamp),
	    .timestamp_begin = __atomic_load_n(&ledger->start_clock, __ATOMIC_RELAXED),
	    .content_size = bytes * BITS,
	    .cpu_id = buf->cpu,
	    .pid = buf->pid,
	};
}
