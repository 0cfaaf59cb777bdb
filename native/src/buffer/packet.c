/* SPDX-License-Identifier: MIT */
/*
 * Sub-buffers as CTF packets.
 *
 *     memory                 |(reserved)|event|event|event|....|(reserved)|event ...
 *     readers get            |  packet  |event|event|event|    |  packet  |event ...
 *
 * Writers only reserve room for the header. A reader makes it from the entries of the sub-buffer and of the next one,
 * which a switch changes in one step. So the header is right even if a writer has died.
 */
#define _GNU_SOURCE
#include "buffer/packet.h"

#include "buffer/head.h"
#include "buffer/subbuf_start.h"

#include <errno.h>

enum { BITS = 8 };

static bool has_begun(const struct rchan_buf *buf, uint64_t number, uint64_t head)
{
	return number < relay_pos_number(buf, head) || relay_has_begun(buf, head);
}

/*
 * The end of a packet whose next sub-buffer has not begun: the present time, and all records lost so far. A thread may
 * be about to begin the next sub-buffer, and may have stored its time already. It does so with the switch lock; so
 * relay_switch_watch() waits until it has published the beginning, and then the result is -EAGAIN. Returns 0, -EAGAIN,
 * or an error of relay_switch_watch().
 */
static int end_now(struct rchan_buf *buf, struct relay_packet *packet, uint64_t number)
{
	uint64_t head, second;
	packet->events_discarded = relay_lost(buf);
	packet->timestamp_end = relay_clock_now(buf->timestamp);
	/* Pairs with the compare-and-swap by which a thread takes the lock: if this thread finds the lock free, a
	 * thread that takes it later also reads the clock later. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	int result = relay_switch_watch(buf);
	if (result < 0)
		return result;
	return relay_head(buf, &head, &second) || has_begun(buf, number + 1, head) ? -EAGAIN : 0;
}

/* Check the fields. Times of some clocks differ slightly between CPUs. Returns 1 or -EBADMSG. */
static int check_packet(struct rchan_buf *buf, const struct relay_packet *packet)
{
	struct relay_damage *damage = &buf->damage;
	const bool is_ordered = relay_clocks[buf->timestamp].is_ordered;
	uint64_t number = packet->packet_seq_num, least = is_ordered ? packet->timestamp_begin : 0;
	if (relay_damage_above(damage, "the time when sub-buffer [] began", number, packet->timestamp_begin,
	                       INT64_MAX) ||
	    relay_damage_above(damage, "the time when sub-buffer [] ended", number, packet->timestamp_end, INT64_MAX) ||
	    relay_damage_below(damage, "the time when sub-buffer [] ended", number, packet->timestamp_end, least) ||
	    relay_damage_above(damage, "the number of records lost before the end of sub-buffer []", number,
	                       packet->events_discarded, INT64_MAX))
		return -EBADMSG;
	return 1;
}

int relay_packet_say(struct rchan_buf *buf, struct relay_packet *packet, uint64_t number, uint64_t head, uint64_t bytes,
                     uint64_t more)
{
	const struct relay_subbuf *entry = relay_pos_entry(buf, relay_pos_start(buf, number));
	const struct relay_subbuf *next = relay_pos_entry(buf, relay_pos_start(buf, number + 1));
	int err = has_begun(buf, number + 1, head) ? -EAGAIN : end_now(buf, packet, number);
	if (err && err != -EAGAIN)
		return 0;
	/* Relaxed: published by head, which the caller or end_now() has loaded before, and which the
	 * caller checks again afterwards. */
	*packet = (struct relay_packet){
	    .magic = RELAY_PACKET_MAGIC,
	    .stream_instance_id = buf->cpu,
	    .packet_size = bytes * BITS,
	    .events_discarded =
		(err ? __atomic_load_n(&next->start_lost, __ATOMIC_RELAXED) : packet->events_discarded) + more,
	    .packet_seq_num = number,
	    .timestamp_end = err ? __atomic_load_n(&next->start_clock, __ATOMIC_RELAXED) : packet->timestamp_end,
	    .timestamp_begin = __atomic_load_n(&entry->start_clock, __ATOMIC_RELAXED),
	    .content_size = bytes * BITS,
	    .cpu_id = buf->cpu,
	    .pid = buf->pid,
	};
	return check_packet(buf, packet);
}
