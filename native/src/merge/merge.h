/* SPDX-License-Identifier: MIT */
/* Events of many streams in the order of their times. */
#ifndef RELAYFS_MERGE_MERGE_H
#define RELAYFS_MERGE_MERGE_H

#include "merge/stream.h"

/* Add a stream whose packets come from `source`, of which nothing older than `watermark` (ticks) comes. The source is closed with
 * the merge, also after an error. 0, -ENOMEM or -EINVAL. */
int relay_merge_add_source(struct relay_merge *merge, int process, uint32_t cpu, struct relay_source *source,
                           uint64_t watermark);

/* From now on buffers that may be written to are refused. false: there is one already. */
bool relay_merge_takes_no_buffers(struct relay_merge *merge);

/* NULL: there is no such process. */
const struct relay_traced *relay_merge_process(const struct relay_merge *merge, int process);

/*
 * The next event, valid until the next call: of those with the same time, first the one of the stream that was added first.
 * NULL: all streams have ended; or an empty stream may still get an event older than those of all others; or the next event is later
 * than relay_merge_limit() says.
 *
 * An event older than one that was given out before (its stream was added late, or has broken its word) is given out at once.
 */
const struct relay_event *relay_merge_next(struct relay_merge *merge);

/* All streams have ended. */
bool relay_merge_is_ended(const struct relay_merge *merge);

#endif
