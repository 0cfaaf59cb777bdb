/* SPDX-License-Identifier: MIT */
/*
 * A shared object that has the library in it. It writes one line of its own to MNT/app/plugin, counts it in plugin/lines, and
 * traces it as plugin:line.
 */
#include <errno.h>
#include <relayfs/producer.h>
#include <relayfs/trace.h>

RELAY_TRACE_EVENT(plugin, line, (u32, number))

/* Returns 0 or an errno. */
int plugin_write(const char *channel);
int plugin_write(const char *channel)
{
	struct rchan *chan = relay_attach(channel);
	struct relay_counters *counters = relay_counters_open(NULL);
	int instance = relay_perf_add(counters, "plugin/lines");

	if (!chan || !counters || instance < 0)
		return errno;
	trace_plugin_line(1);
	return -(relay_write(chan, "plugin\n", 7) || relay_perf_adjust(counters, instance, 1));
}
