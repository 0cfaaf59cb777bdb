/* SPDX-License-Identifier: MIT */
/*
 * Checking that each event of a packet is as its process has declared it. A viewer computes the length of an event from
 * its declaration; so an event that differs makes the rest of the packet unreadable, and viewers then refuse the whole
 * recording. The packet must be a private copy, because in shared memory it could change after the check.
 */
#include "trace/layouts.h"

void relay_packet_check(const struct relay_layouts *layouts, const void *events, size_t length, uint64_t begin,
                        uint64_t end, struct relay_packet_checked *checked)
{
	const unsigned char *first = events;
	struct relay_event_cursor cursor = {
	    .layouts = layouts, .at = first, .stop = first + length, .time = begin, .end = end};
	*checked = (struct relay_packet_checked){.fault = RELAY_PACKET_GOOD};
	while (cursor.at < cursor.stop && checked->fault == RELAY_PACKET_GOOD) {
		checked->fault = relay_next_event(&cursor);
		checked->n_events += checked->fault == RELAY_PACKET_GOOD;
	}
	checked->time = cursor.time;
	checked->good_bytes = (uint64_t)(cursor.at - first);
	if (checked->fault == RELAY_PACKET_UNDECLARED || checked->fault == RELAY_PACKET_FIELDS)
		checked->id = cursor.id;
}
