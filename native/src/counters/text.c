/* SPDX-License-Identifier: MIT */
/* Counters as text, for the file server (<relayfs/counters_store.h>). Thousands of lines take milliseconds in C and
 * much longer in Python, and all other requests wait meanwhile. */
#define _GNU_SOURCE
#include <relayfs/counters_store.h>

#include "counters/format.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* The longest line of one instance: its texts, and some numbers. */
enum { LINE_BYTES = sizeof(struct relay_perf_info) + 128, LIST_TRIES = 4 };

struct sink {
	char *text;
	size_t bytes, length; /* length: of the whole text, including what does not fit */
};

static void put(struct sink *sink, const char *line, int length)
{
	if (sink->length + (size_t)length <= sink->bytes)
		memcpy(sink->text + sink->length, line, (size_t)length);
	sink->length += (size_t)length;
}

static void put_name(struct sink *sink, const struct relay_perf_info *info)
{
	static const char *const kinds[] = {"counter", "gauge"};
	char line[LINE_BYTES];
	put(sink, line,
	    snprintf(line, sizeof(line), "%d %s kind=%s uid=%u gid=%u mode=%04o%s%s%s%s\n", info->instance, info->name,
	             kinds[info->kind & 1], info->uid, info->gid, info->mode, info->unit[0] ? " unit=" : "", info->unit,
	             info->help[0] ? " help=" : "", info->help));
}

long relay_counters_list(struct relay_counters *counters, char *text, size_t bytes)
{
	for (int tries = 0; tries < LIST_TRIES; tries++) {
		struct sink sink = {.text = text, .bytes = bytes};
		struct relay_perf_info info = {.instance = 0};
		char line[LINE_BYTES];
		int err = relay_counters_refresh(counters);
		if (err < 0)
			return err;
		put(&sink, line, snprintf(line, sizeof(line), "gen %llu\n", (unsigned long long)counters->seen.gen1));
		while (relay_counters_next(counters, info.instance, &info))
			put_name(&sink, &info);
		if (relay_counters_refresh(counters) == 0)
			return (long)sink.length;
	}
	return -EAGAIN;
}

long relay_counters_values(const struct relay_counters *counters, char *text, size_t bytes)
{
	struct sink sink = {.text = text, .bytes = bytes};
	struct relay_perf_info info = {.instance = 0};
	while (relay_counters_next(counters, info.instance, &info)) {
		char line[LINE_BYTES];
		int64_t value = 0;
		relay_counters_sum(counters, info.instance, &value);
		put(&sink, line, snprintf(line, sizeof(line), "%s %lld\n", info.name, (long long)value));
	}
	return (long)sink.length;
}
