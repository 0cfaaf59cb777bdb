/* SPDX-License-Identifier: MIT */
/*
 * The statistics that the file server shows in .channels/PATH/: one table for each type of channel.
 *
 * A new statistic needs a field in struct relay_stats or relay_ring_stats, the code in buffer/stats.c or ring/stats.c
 * that fills it, a row in a table of this file, and a paragraph in relayfs(5).
 */
#include <relayfs/ring_store.h>
#include <stddef.h>

#define N_OF(array) (sizeof(array) / sizeof((array)[0]))

/* The value of a channel is the sum (COUNTER, COUNT) or the maximum (LATEST) of its buffers' values. COUNTERs are also
 * counters of the mount (<relayfs/counters.h>). */
#define COUNTER(shown, of, what, text) .name = (shown), .field = #of, .unit = (what), .help = (text)
#define COUNT(shown, of) .name = (shown), .field = #of
#define LATEST(shown, of) .name = (shown), .field = #of, .form = RELAY_STATISTIC_LATEST

static const struct relay_statistic relay_rows[] = {
    {COUNTER("produced", produced, "sub-buffers", "Sub-buffers finished")},
    {COUNTER("consumed", consumed, "sub-buffers", "Sub-buffers read")},
    {COUNTER("records", records, "records", "Records written")},
    {COUNTER("bytes", bytes, "bytes", "Bytes written")},
    {COUNTER("unread_bytes", unread_bytes, "bytes", "Bytes that wait to be read"), .form = RELAY_STATISTIC_LEVEL},
    {COUNTER("lost_full", lost_full_records, "records", "Records refused: the buffer was full")},
    {COUNTER("lost_too_large", lost_too_large_records, "records", "Records refused: longer than a sub-buffer")},
    {COUNTER("lost_disabled", lost_disabled_records, "records", "Records refused: the channel was disabled")},
    {COUNTER("lost_overwritten", lost_overwritten_records, "records", "Records overwritten before they were read")},
    {COUNTER("lost_torn", lost_torn_records, "records", "Records that their producer never completed")},
    {COUNTER("discarded", discarded_records, "records", "Reservations that their producer took back")},
    {COUNTER("reads", reads, "reads", "Reads")},
    {COUNTER("wakeups", wakeups, "wake-ups", "Wake-ups of sleeping readers")},
    {COUNT("read_records", read_records)},
    {COUNT("read_bytes", read_bytes)},
    {COUNT("padding", padding)},
    {COUNT("lost", lost_records)},
    {COUNT("lost_bytes", lost_bytes)},
    {COUNT("lost_full_bytes", lost_full_bytes)},
    {COUNT("lost_too_large_bytes", lost_too_large_bytes)},
    {COUNT("lost_disabled_bytes", lost_disabled_bytes)},
    {COUNT("lost_overwritten_bytes", lost_overwritten_bytes)},
    {COUNT("lost_torn_bytes", lost_torn_bytes)},
    {COUNT("discarded_bytes", discarded_bytes)},
    {COUNT("file_bytes", file_bytes)},
    {LATEST("disabled", disabled)},
    {LATEST("suspended", suspended)},
    {LATEST("switch_time_ns", switch_time_ns)},
    {COUNT("offset", offset), .form = RELAY_STATISTIC_OF_BUFFER},
};

static const struct relay_statistic ring_rows[] = {
    {COUNTER("records", records, "records", "Records written")},
    {COUNTER("unread_bytes", unread_bytes, "bytes", "Bytes that wait to be read"), .form = RELAY_STATISTIC_LEVEL},
    {COUNTER("lost_full", lost_full_records, "records", "Records refused: the ring was full")},
    {COUNTER("lost_too_large", lost_too_large_records, "records", "Records refused: longer than the ring")},
    {COUNTER("lost_disabled", lost_disabled_records, "records", "Records refused: the channel was disabled")},
    {COUNTER("lost_overwritten", lost_overwritten_records, "records", "Records overwritten before they were read"),
     .source = RELAY_STATISTIC_OF_OVERWRITTEN},
    {COUNTER("lost_torn", torn_records, "records", "Records that their producer never completed")},
    {COUNTER("wakeups", wakeups, "wake-ups", "Wake-ups of sleeping readers")},
    {COUNT("producer_position", producer_position)},
    {COUNT("consumer_position", consumer_position)},
    {COUNT("read_records", read_records), .source = RELAY_STATISTIC_OF_CONSUMERS},
    {COUNT("read_bytes", read_bytes), .source = RELAY_STATISTIC_OF_CONSUMERS},
    {COUNT("skipped", skipped_records), .source = RELAY_STATISTIC_OF_CONSUMERS},
    {COUNT("lost", lost_records), .source = RELAY_STATISTIC_OF_OVERWRITTEN},
    {COUNT("lost_full_bytes", lost_full_bytes)},
    {COUNT("lost_too_large_bytes", lost_too_large_bytes)},
    {COUNT("lost_disabled_bytes", lost_disabled_bytes)},
    {COUNT("file_bytes", file_bytes)},
    {LATEST("disabled", disabled)},
};

static const struct {
	const struct relay_statistic *rows;
	unsigned n;
} tables[] = {{relay_rows, N_OF(relay_rows)}, {ring_rows, N_OF(ring_rows)}};

const struct relay_statistic *relay_statistic_at(uint32_t type, unsigned i)
{
	return type < N_OF(tables) && i < tables[type].n ? &tables[type].rows[i] : NULL;
}
