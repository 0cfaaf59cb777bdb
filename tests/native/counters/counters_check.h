/* SPDX-License-Identifier: MIT */
/* Counters of a store that nobody serves. */
#ifndef COUNTERS_CHECK_H
#define COUNTERS_CHECK_H

#include "check.h"

#include <relayfs/counters_store.h>
#include <sys/stat.h>
#include <unistd.h>

DEFINE_AUTOPTR(relay_counters, relay_counters_close)

static inline const char *store(void)
{
	static char path[4096];
	snprintf(path, sizeof(path), "%s/store", scratch);
	return path;
}

static inline const char *in_store(const char *name)
{
	static char path[8192];
	snprintf(path, sizeof(path), "%s/.counters/%s", store(), name);
	return path;
}

static inline void make_store(uint32_t limit)
{
	CHECK_EQ(mkdir(store(), 0755), 0);
	CHECK_EQ(chmod(store(), 0755), 0);
	CHECK_EQ(relay_counters_create(store(), limit), 0);
}

static inline struct relay_counters *open_counters(void)
{
	struct relay_counters *counters = relay_counters_open(store());
	if (!counters)
		perror("relay_counters_open");
	CHECK(counters != NULL);
	return counters;
}

static inline struct relay_counters *make_counters(uint32_t limit)
{
	make_store(limit);
	return open_counters();
}

static inline int64_t sum_of(struct relay_counters *counters, int instance)
{
	int64_t value = 0;
	CHECK(relay_counters_refresh(counters) >= 0);
	CHECK_EQ(relay_counters_sum(counters, instance, &value), 0);
	return value;
}

static inline struct relay_perf_spec a_spec_of(uint32_t uid, uint32_t mode)
{
	return (struct relay_perf_spec){.size = sizeof(struct relay_perf_spec), .uid = uid, .gid = uid, .mode = mode};
}

#endif
