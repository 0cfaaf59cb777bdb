/* SPDX-License-Identifier: MIT */
/*
 * <relayfs/counters_store.h>: functions on counters for file servers and tools; symbols as in <relayfs/store.h>.
 * Programs that count or read need <relayfs/counters.h> alone, whose rules hold here, too.
 */
#ifndef RELAYFS_COUNTERS_STORE_H
#define RELAYFS_COUNTERS_STORE_H

#include <relayfs/counters.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * enter()    adds an instance for another process, as relay_perf_add_as(); this handle does not adjust it
 * adjust()   adds `delta` to an instance in the block of no CPU, for a process that cannot map it
 * free()     deletes an instance that only this process sets; its number may be given to another name
 * limit()    returns the limit of names
 * list()     writes the lines of counters.names, of one generation, to `text`; returns their length, which may be
 *            more than `bytes`, or -EAGAIN: other processes keep changing them
 * values()   does the same with the lines of counters.txt, as of the last refresh
 * create()   makes the counters of a store, unless they exist; limit: the limit of names
 * mirror()   copies the counters of other owners into the file to map; 1: some had changed; 0: none had; -errno
 * has_others()  returns 1 if there are or were any for mirror(), else 0
 * set()      stores the value of an instance that only this process changes
 * repair()   completes a change whose process died
 * hold()     prevents changes by other processes until the returned descriptor is closed
 *
 * enter(), adjust(), free(), mirror(), set(), repair() and hold() return -EACCES if this process may not write to all
 * files of the counters; adjust(), free() and set() return -ENOENT if there is no such instance; other errors are
 * those of relay_perf_add().
 */
int relay_counters_enter(struct relay_counters *counters, const char *name, const struct relay_perf_spec *spec);
int relay_counters_adjust(struct relay_counters *counters, int instance, int64_t delta);
int relay_counters_free(struct relay_counters *counters, int instance);
uint32_t relay_counters_limit(const struct relay_counters *counters);
long relay_counters_list(struct relay_counters *counters, char *text, size_t bytes);
long relay_counters_values(const struct relay_counters *counters, char *text, size_t bytes);
int relay_counters_create(const char *store, uint32_t limit);
int relay_counters_mirror(struct relay_counters *counters);
int relay_counters_has_others(const struct relay_counters *counters);
int relay_counters_set(struct relay_counters *counters, uint32_t block, int instance, int64_t value);
int relay_counters_repair(struct relay_counters *counters);
int relay_counters_hold(struct relay_counters *counters);

#ifdef __cplusplus
}
#endif
#endif
