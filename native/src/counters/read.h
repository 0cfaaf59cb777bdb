/* SPDX-License-Identifier: MIT */
/* Which numbers, chunks and domains are taken: given out, counted and freed. The lock is held for all of it. */
#ifndef RELAYFS_COUNTERS_READ_H
#define RELAYFS_COUNTERS_READ_H

#include "counters/format.h"

/* The domain of a new name: that of its group, or of a new group, which may come to be. `spec` is complete. Or -errno:
 * -EACCES this user may not adjust there; -EDQUOT he has as many domains as he may; -ENOSPC there are no more. */
int relay_perf_domain_for(struct relay_counters *counters, const char *name, const struct relay_perf_spec *spec);

/* May user `uid` add a name in a domain? 0; or -EDQUOT the domain's owner has as many as he may; -ENOSPC the limit is
 * reached. */
int relay_perf_check_quota(const struct relay_counters *counters, uint32_t domain, uint32_t uid);

/* Within a change: a number in a domain, with a record that is free. Or -ENOSPC there is no memory. */
int relay_perf_take_number(struct relay_counters *counters, uint32_t domain);

/* A number gets a state; the sums follow. */
void relay_perf_set_state(struct relay_counters *counters, uint32_t n, uint32_t state);

/* Within a change: a number of domain 0 loses its name and can be taken again. It keeps both if its group is found by it. */
void relay_perf_free_number(struct relay_counters *counters, uint32_t n);

/* Is there a domain whose names are all deleted? Within a change: free all of these. */
bool relay_perf_has_empty_domain(const struct relay_counters *counters);
void relay_perf_free_domains(struct relay_counters *counters);

/* Somebody died within a change: put in order what depends on the records. */
void relay_perf_mend(struct relay_counters *counters);

#endif
