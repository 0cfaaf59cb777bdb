/* SPDX-License-Identifier: MIT */
/* Buffers that a test writes events to, and a merge that looks at them. */
#ifndef LIVE_H
#define LIVE_H

#include "packets.h"

#include "base/clock.h"
#include "buffer/write.h"

enum { SUBBUF = 4096, N_SUBBUFS = 4 };

static inline struct rchan_buf *make_packets(uint64_t subbuf_size, uint32_t mode)
{
	return make_packet_buf(subbuf_size, N_SUBBUFS, mode);
}

static inline uint64_t now(void)
{
	return relay_clock_ns(CLOCK_MONOTONIC);
}

/* As tracepoints do it, with the time at which its position was taken. */
static inline int write_event(struct rchan_buf *buf, uint16_t id, const void *fields, size_t length)
{
	static unsigned char event[1 << 18];
	struct relay_record_time time = {.rest = event + RELAY_TRACE_HEAD_BYTES, .is_short = true, .id = id};

	CHECK(length <= sizeof(event) - RELAY_TRACE_HEAD_BYTES);
	memcpy(time.rest, fields, length);
	return relay_write_shared(buf, event, RELAY_TRACE_HEAD_BYTES + length, &time, false);
}

static inline void write_number(struct rchan_buf *buf, uint32_t number)
{
	CHECK_EQ(write_event(buf, 0, &number, sizeof(number)), 0);
}

/* The merge is to be declared after the buffers that it reads, because AUTOPTR frees in the opposite order. */
static inline struct relay_merge *live_merge(void)
{
	struct relay_merge *merge = relay_merge_new(0, UINT64_MAX);
	struct relay_merge_process process = a_process(one_u32());

	process.clock = RELAY_MONO;
	CHECK_EQ(relay_merge_add_process(merge, &process), 0);
	return merge;
}

/* The numbers that a merge gives out, and losses as -N. */
static const char *given(struct relay_merge *merge)
{
	static char text[1 << 12];
	const struct relay_event *event;
	size_t n = 0;

	text[0] = 0;
	while ((event = relay_merge_next(merge))) {
		long long number = event->lost ? -(long long)event->lost : (long long)number_of(event);

		n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%lld", n ? " " : "", number);
		CHECK(n < sizeof(text));
	}
	return text;
}

#define CHECK_GIVEN(merge, numbers) CHECK_EQ(strcmp(given(merge), numbers), 0)

/* Whether an event of this number is given out now. */
static inline bool gives(struct relay_merge *merge, uint64_t number)
{
	const struct relay_event *event;
	bool is_given = false;

	while ((event = relay_merge_next(merge)))
		is_given |= !event->lost && number_of(event) == number;
	return is_given;
}

/* What a program can write that has the buffer's memory: an event of any time. */
static inline void write_at(struct rchan_buf *buf, uint64_t time, uint32_t number)
{
	const struct {
		uint64_t head;
		uint32_t number;
	} event = {time << RELAY_TRACE_ID_BITS, number};

	CHECK_EQ(relay_buf_write(buf, &event, sizeof(event.head) + sizeof(event.number)), 0);
}

/* Who can write to the buffer's memory can have begun any time ago. */
static inline void write_old(struct rchan_buf *buf, uint64_t *time)
{
	write_at(buf, ++*time, 9);
	for (uint32_t i = 0; i < 2 * buf->n_subbufs; i++)
		buf->subbufs[i].start_clock = 1;
}

#endif
