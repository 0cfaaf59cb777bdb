/* SPDX-License-Identifier: MIT */
/*
 * Making packets of the events that a merge returns. A packet has the events of one stream. Each event gets a new head: the
 * usual head of 8 bytes has only the low bits of the time, and readers take the high bits from the packet's begin.
 */
#define _GNU_SOURCE
#include "base/clock.h"
#include "merge/grown.h"
#include "merge/merge.h"
#include "merge/output.h"

#include <errno.h>

/* A packet, or all packets of one relay_packets_gather(), get no further events when they have so many bytes. */
enum { PACKET_BYTES = 1 << 18, ALL_BYTES = 1 << 22 };
static const uint64_t NS = 1000000000;

struct packet {
	struct relay_merge_packet told;
	struct relay_output events;
};

struct relay_packets {
	struct relay_merge *merge;
	struct packet *at; /* n of them, in the order of their first events */
	size_t n, capacity, n_told;
	size_t *of_stream; /* by the number of a stream: 1 + the index of its last packet; 0: it has none */
	size_t n_streams, bytes;
	bool has_failed;
};

struct relay_packets *relay_packets_new(struct relay_merge *merge)
{
	struct relay_packets *packets = calloc(1, sizeof(*packets));
	if (packets)
		packets->merge = merge;
	return packets;
}

static void forget(struct relay_packets *packets)
{
	for (size_t i = 0; i < packets->n; i++)
		free(packets->at[i].events.at);
	memset(packets->of_stream, 0, packets->n_streams * sizeof(*packets->of_stream));
	packets->n = packets->n_told = packets->bytes = 0;
}

void relay_packets_free(struct relay_packets *packets)
{
	if (!packets)
		return;
	if (packets->of_stream)
		forget(packets);
	free(packets->at);
	free(packets->of_stream);
	free(packets);
}

static uint64_t ticks_in(const struct relay_traced *traced, uint64_t ns)
{
	unsigned __int128 ticks = ((unsigned __int128)ns * traced->freq + NS - 1) / NS;
	return ticks < UINT64_MAX ? (uint64_t)ticks : UINT64_MAX;
}

/* Return the tick of a time; if it is between two ticks, the later one. The ticks of a clock that is mapped are ns since
 * 1970. */
static uint64_t ticks_at(const struct relay_traced *traced, uint64_t time)
{
	if (traced->map)
		return time;
	uint64_t base = relay_traced_time(traced, 0), ns = time > base ? time - base : 0;
	uint64_t ticks = ticks_in(traced, ns);
	/* relay_traced_time() rounds down, by less than 1 ns. */
	return relay_traced_time(traced, ticks) < time ? ticks_in(traced, ns + 1) : ticks;
}

/* Append a packet that begins at `ticks`. NULL: no memory. */
static struct packet *begin(struct relay_packets *packets, const struct relay_stream *stream, uint64_t ticks)
{
	if (packets->n == packets->capacity) {
		size_t capacity = 2 * packets->capacity + 16;
		struct packet *at = reallocarray(packets->at, capacity, sizeof(*at));
		if (!at)
			return NULL;
		packets->at = at;
		packets->capacity = capacity;
	}
	struct packet *packet = &packets->at[packets->n++];
	packets->of_stream[stream->number] = packets->n;
	*packet = (struct packet){
	    .told = {.identity = stream->traced->identity, .cpu = stream->cpu, .begin = ticks, .end = ticks}};
	return packet;
}

/* Return the packet for an event at `ticks`. A loss begins a new packet, because packets count the events that were lost
 * before them. NULL: no memory. */
static struct packet *packet_for(struct relay_packets *packets, const struct relay_event *event, uint64_t ticks)
{
	const struct relay_stream *stream = event->stream;
	size_t *of_stream = relay_grown(packets->of_stream, &packets->n_streams, stream->number, sizeof(*of_stream));
	if (!of_stream)
		return NULL;
	packets->of_stream = of_stream;
	size_t place = of_stream[stream->number];
	struct packet *packet = place ? &packets->at[place - 1] : NULL;
	bool has_events = packet && packet->told.n_events;
	if (packet && !(event->lost && has_events) && packet->events.length < PACKET_BYTES)
		return packet;
	return begin(packets, stream, packet && ticks < packet->told.end ? packet->told.end : ticks);
}

static void put_event(struct packet *packet, const struct relay_event *event, uint64_t ticks)
{
	const uint64_t id = event->stream->cursor.id;
	const uint16_t ids[2] = {RELAY_TRACE_EXTENDED, (uint16_t)id};
	const uint64_t head = ticks << RELAY_TRACE_ID_BITS | id;
	if (ticks >> RELAY_TRACE_TIME_BITS == packet->told.begin >> RELAY_TRACE_TIME_BITS) {
		relay_put(&packet->events, &head, sizeof(head));
	} else {
		relay_put(&packet->events, ids, sizeof(ids));
		relay_put(&packet->events, &ticks, sizeof(ticks));
	}
	relay_put(&packet->events, event->context, (size_t)(event->end - event->context));
	packet->told.n_events++;
}

/* Add an event or a loss to a packet. false: no memory. */
static bool take(struct relay_packets *packets, const struct relay_event *event, uint64_t floor)
{
	const struct relay_stream *stream = event->stream;
	/* Viewers put packets into the order of their times, so these are the times by which the merge has done so. */
	const uint64_t order = relay_traced_order(stream->traced, event->time), time = order < floor ? floor : order;
	const bool has_own_ticks = time == event->time && !stream->traced->map;
	uint64_t ticks = has_own_ticks ? stream->cursor.time : ticks_at(stream->traced, time);
	struct packet *packet = packet_for(packets, event, ticks);
	if (!packet)
		return false;
	ticks = ticks < packet->told.end ? packet->told.end : ticks;
	packet->told.end = ticks;
	packet->told.lost += event->lost;
	size_t before = packet->events.length;
	if (!event->lost)
		put_event(packet, event, ticks);
	packets->bytes += sizeof(*packet) + packet->events.length - before;
	return !packet->events.has_failed;
}

int relay_packets_gather(struct relay_packets *packets, uint64_t floor)
{
	const struct relay_event *event = NULL;
	if (packets->of_stream)
		forget(packets);
	/* The packet of the stream for which there was no memory may be incomplete. */
	if (packets->has_failed)
		return -ENOMEM;
	while (packets->bytes < ALL_BYTES && (event = relay_merge_next(packets->merge)))
		if (!take(packets, event, floor)) {
			packets->has_failed = true;
			return -ENOMEM;
		}
	return !event;
}

int relay_packets_next(struct relay_packets *packets, struct relay_merge_packet *packet)
{
	if (packets->n_told == packets->n)
		return 0;
	const struct packet *next = &packets->at[packets->n_told++];
	*packet = next->told;
	packet->events = next->events.at;
	packet->length = next->events.length;
	return 1;
}
