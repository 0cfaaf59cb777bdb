/* SPDX-License-Identifier: MIT */
/*
 * host PLUGIN MNT/app/host MNT/app/plugin: a program that is linked to the library writes and traces a line, has PLUGIN do the
 * same with a library of its own, which it then unloads, and writes and traces another line.
 */
#include <dlfcn.h>
#include <relayfs/producer.h>
#include <relayfs/trace.h>
#include <stdio.h>

RELAY_TRACE_EVENT(host, line, (u32, number))

int main(int argc, char **argv)
{
	struct rchan *chan = argc == 4 ? relay_attach(argv[2]) : NULL;
	int (*plugin_write)(const char *);
	void *plugin;

	if (!chan || relay_write(chan, "one\n", 4))
		return 2;
	trace_host_line(1);
	plugin = dlopen(argv[1], RTLD_NOW);
	if (!plugin) {
		fprintf(stderr, "%s\n", dlerror());
		return 3;
	}
	*(void **)&plugin_write = dlsym(plugin, "plugin_write");
	if (plugin_write(argv[3]) || dlclose(plugin))
		return 4;
	trace_host_line(2);
	return relay_write(chan, "two\n", 4) != 0;
}
