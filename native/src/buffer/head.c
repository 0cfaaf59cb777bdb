/* SPDX-License-Identifier: MIT */
#include "buffer/head.h"

#include <errno.h>

int relay_head(const struct rchan_buf *buf, uint64_t *first, uint64_t *second)
{
	if (!relay_latch_read(&buf->control->head, first, second) || !relay_pos_valid(buf, *first))
		return -EBADMSG;
	return 0;
}

int relay_head_checked(struct rchan_buf *buf, uint64_t *first, uint64_t *second)
{
	if (!relay_latch_read(&buf->control->head, first, second))
		return relay_damage_say(&buf->damage, "relay_control.head keeps changing");
	if (relay_pos_valid(buf, *first))
		return 0;
	return relay_damage_note(&buf->damage, "relay_control.head.first", 0, *first,
	                         "not a position in sub-buffers of so many bytes:", buf->subbuf_size);
}

int relay_buf_full(struct rchan_buf *buf)
{
	/* Relaxed: this is called in a callback, during which no thread changes head. The load of `consumed` pairs
	 * with the release in relay_consumer_publish(), before which the reader has left the memory. */
	uint64_t head = __atomic_load_n(&buf->control->head.first, __ATOMIC_RELAXED);
	uint64_t consumed = __atomic_load_n(&buf->control->consumed, __ATOMIC_ACQUIRE);
	return relay_pos_number(buf, head) - relay_pos_number(buf, consumed) >= buf->n_subbufs;
}

void relay_lost_by_cause(const struct rchan_buf *buf, uint64_t records[3])
{
	const struct relay_control *control = buf->control;
	const struct relay_latch *const latches[] = {&control->lost_full, &control->lost_too_large,
	                                             &control->lost_disabled};
	uint64_t bytes;
	for (size_t i = 0; i < sizeof(latches) / sizeof(latches[0]); i++)
		relay_latch_read_or_zero(latches[i], &records[i], &bytes);
}

uint64_t relay_lost(const struct rchan_buf *buf)
{
	uint64_t records[3];
	relay_lost_by_cause(buf, records);
	return records[0] + records[1] + records[2];
}
