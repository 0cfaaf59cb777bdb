/* SPDX-License-Identifier: MIT */
/* Events of many streams in the order of their times. */
#ifndef RELAYFS_MERGE_MERGE_H
#define RELAYFS_MERGE_MERGE_H

#include "merge/stream.h"

/* Add a stream whose packets come from `source`, and have no event older than `watermark`, in ticks. source->close() is
 * called when the stream is freed, also after an error. 0; -ENOMEM; -EINVAL: there is no such process, or
 * relay_merge_takes_no_buffers() was called and the source is a buffer. */
int relay_merge_add_source(struct relay_merge *merge, int process, uint32_t cpu, struct relay_source *source,
                           uint64_t watermark);

/* Return the source of a stream. NULL: the process has none for this CPU. */
struct relay_source *relay_merge_source(const struct relay_merge *merge, int process, uint32_t cpu);

/* Refuse buffers and rings from now on. false: the merge has one already. */
bool relay_merge_takes_no_buffers(struct relay_merge *merge);

/* Return a process by its number. NULL: there is no such process. */
struct relay_traced *relay_merge_process(const struct relay_merge *merge, int process);

/*
 * Return the next event, valid until the next call. Of events with the same time, that of the stream that was added first
 * is returned first. NULL: all streams have ended; or a stream is empty and may still get an event that is older than the
 * next ones of all others; or the next event is later than relay_merge_limit() allows.
 *
 * An event that is older than an earlier one, because its stream was added late or had returned too late a watermark, is
 * returned at once.
 */
const struct relay_event *relay_merge_next(struct relay_merge *merge);

/* Return a machine by its number, from 0. NULL: there is no such one. */
const struct relay_host *relay_merge_host(const struct relay_merge *merge, uint32_t number);

/* Return a number that no other triggers of the merge have. */
uint64_t relay_merge_next_generation(struct relay_merge *merge);

/* True if all streams have ended, and all their events were returned. */
bool relay_merge_is_ended(const struct relay_merge *merge);

#endif
