/* SPDX-License-Identifier: MIT */
/* Checking names, units and help texts; finding names in the index. */
#ifndef RELAYFS_COUNTERS_NAMES_H
#define RELAYFS_COUNTERS_NAMES_H

#include "counters/format.h"

/* 0, -EINVAL or -ENAMETOOLONG. */
int relay_perf_check_name(const char *name);

/* True if the text is UTF-8, or NULL. */
bool relay_perf_is_utf8(const char *text);

/* True if the text is shorter than `bytes` and printable, or NULL. */
bool relay_perf_is_text(const char *text, size_t bytes, bool spaces);

/* Return the length of the group's part of a name. */
size_t relay_perf_group_length(const char *name);

/* Return the number of a name, listed or not; or of an instance of the group with which `name` begins. 0: there is none. */
uint32_t relay_perf_find(const struct relay_counters *counters, const char *name);
uint32_t relay_perf_find_group(const struct relay_counters *counters, const char *name);

/* True if the index has an entry for number n where this name would be looked for, or, with `group`, that of its group. */
bool relay_perf_has_entry(const struct relay_counters *counters, uint32_t n, const char *name, bool group);

/* Return the number of a listed name, without the lock; -ENOENT; -EAGAIN: a change has not been completed for a
 * second. */
int relay_perf_look_up(const struct relay_counters *counters, const char *name);

/* Add an entry for number n to the index, by the name in its record or, with `group`, by the group's name. 0 or
 * -ENOSPC. relay_perf_leave() removes the entry if it exists. The caller has the lock. */
int relay_perf_enter(struct relay_counters *counters, uint32_t n, bool group);
void relay_perf_leave(struct relay_counters *counters, uint32_t n, bool group);

/* True if number n is in one of the present chunks and its record has memory. */
bool relay_perf_has_number(const struct relay_counters *counters, uint32_t n);

#endif
