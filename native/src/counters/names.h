/* SPDX-License-Identifier: MIT */
/* Names and what is said of them: which are allowed, which there are. */
#ifndef RELAYFS_COUNTERS_NAMES_H
#define RELAYFS_COUNTERS_NAMES_H

#include "counters/format.h"

/* 0, -EINVAL or -ENAMETOOLONG. */
int relay_perf_check_name(const char *name);

/* NULL is. */
bool relay_perf_is_utf8(const char *text);

/* Is it shorter than `bytes` and printable? NULL is. */
bool relay_perf_is_text(const char *text, size_t bytes, bool spaces);

/* How long the group's part of a name is. */
size_t relay_perf_group_length(const char *name);

/* The number of a name that has one, listed or not; of an instance of the group `name` begins with. 0: there is none. */
uint32_t relay_perf_find(const struct relay_counters *counters, const char *name);
uint32_t relay_perf_find_group(const struct relay_counters *counters, const char *name);

/* The number of a name that is listed, for who does not have the lock; or -ENOENT; or -EAGAIN: a change has been under way
 * for a second. */
int relay_perf_look_up(const struct relay_counters *counters, const char *name);

/* Add an entry for number n, whose record has its name. 0 or -ENOSPC. Remove it, if there is one. The lock is held. */
int relay_perf_enter(struct relay_counters *counters, uint32_t n, bool group);
void relay_perf_leave(struct relay_counters *counters, uint32_t n, bool group);

/* Is there a record of this number, that can be looked at? Chunks are counted as of now. */
bool relay_perf_has_number(const struct relay_counters *counters, uint32_t n);

#endif
