/* SPDX-License-Identifier: MIT */
/* Allocating, counting and freeing numbers, chunks and domains. The caller has the lock. */
#ifndef RELAYFS_COUNTERS_READ_H
#define RELAYFS_COUNTERS_READ_H

#include "counters/format.h"

/* Return the domain of a new name: that of its group or, for a new group, the domain of the spec's owner, group and
 * mode, which is made if it does not exist. `spec` is complete. Or -errno: -EACCES this user may not adjust there;
 * -EDQUOT the user has too many domains; -ENOSPC there are no more. */
int relay_perf_domain_for(struct relay_counters *counters, const char *name, const struct relay_perf_spec *spec);

/* Check whether user `uid` may add a name in a domain. 0; -EDQUOT the domain's owner has too many names; -ENOSPC the limit is
 * reached. */
int relay_perf_check_quota(const struct relay_counters *counters, uint32_t domain, uint32_t uid);

/* Within a change: allocate a number in a domain, with a free record. Returns the number; -ENOSPC: no memory, or no
 * more chunks; -EBADMSG. */
int relay_perf_take_number(struct relay_counters *counters, uint32_t domain);

/* Set the state of a number, and update the sums. */
void relay_perf_set_state(struct relay_counters *counters, uint32_t n, uint32_t state);

/* Within a change: free a number of domain 0, and its name. If the index has the number as its group's entry, the
 * instance is only marked as deleted. */
void relay_perf_free_number(struct relay_counters *counters, uint32_t n);

/* True if there is a domain whose names are all deleted. Within a change: free all of these. */
bool relay_perf_has_empty_domain(const struct relay_counters *counters);
void relay_perf_free_domains(struct relay_counters *counters);

/* A process died within a change: rebuild what depends on the records. */
void relay_perf_mend(struct relay_counters *counters);

#endif
