/* SPDX-License-Identifier: MIT */
/* Traces of the store SCRATCH, which the test itself serves: what is started in it, and what has been written to it. */
#ifndef SERVED_STORE_H
#define SERVED_STORE_H

#include "check.h"

#include <dirent.h>
#include <pthread.h>
#include <relayfs/trace.h>
#include <relayfs/trace_store.h>
#include <sys/stat.h>
#include <unistd.h>

RELAY_TRACE_EVENT(test, tick)
RELAY_TRACE_EVENT(test, number, (u32, n))

enum { SUBBUF_SIZE = 65536, N_SUBBUFS = 8, N_EVENTS = 500, ROUNDS = 100 };

static struct relay_traces *server;

static inline const char *path_of(const char *trace, const char *name)
{
	static char paths[4][4096];
	static unsigned n;
	char *path = paths[n++ % 4];
	snprintf(path, sizeof(paths[0]), *name ? "%s/%s/%s" : "%s/%s", scratch, trace, name);
	return path;
}

static inline struct relay_trace a_trace(const char *name)
{
	struct relay_trace trace = {
	    .is_started = 1, .clock = RELAY_MONO, .subbuf_size = SUBBUF_SIZE, .n_subbufs = N_SUBBUFS, .boot = "boot"};
	if (!server)
		server = relay_traces_serve(scratch);
	CHECK(server != NULL);
	trace.id = relay_traces_new_id(server);
	relay_clocks_read(trace.clock, &trace.made);
	snprintf(trace.name, sizeof(trace.name), "%s", name);
	CHECK_EQ(mkdir(path_of(name, ""), 0711), 0);
	return trace;
}

/* Let programs see it in this slot. */
static inline void show(unsigned slot, const struct relay_trace *trace)
{
	relay_traces_set(server, slot, trace);
}

static inline struct relay_trace start(unsigned slot, const char *name)
{
	struct relay_trace trace = a_trace(name);
	show(slot, &trace);
	return trace;
}

/* What has been written to a trace, by all who did. */
struct written {
	unsigned n_processes;
	uint64_t events, bytes, lost, too_large;
};

static inline void add_process(struct written *sum, const char *trace, const char *process)
{
	char name[512];
	sum->n_processes++;
	for (unsigned cpu = 0; cpu < relay_n_possible_cpus(); cpu++) {
		snprintf(name, sizeof(name), "%s/cpu/mem%u", process, cpu);
		AUTOPTR(rchan_buf) buf = relay_buf_open(path_of(trace, name));
		CHECK(buf != NULL);
		struct relay_stats stats = stats_of(buf);
		sum->events += stats.records;
		sum->bytes += stats.bytes;
		sum->lost += stats.lost_full_records;
		sum->too_large += stats.lost_too_large_records;
	}
}

static inline struct written written_to(const char *trace)
{
	struct written sum = {0};
	DIR *dir = opendir(path_of(trace, ""));
	CHECK(dir != NULL);
	for (struct dirent *entry; (entry = readdir(dir));)
		if (entry->d_name[0] != '.')
			add_process(&sum, trace, entry->d_name);
	closedir(dir);
	return sum;
}

static inline uint64_t events_in(const char *trace)
{
	return written_to(trace).events;
}

/* --- what the process holds --- */

static inline int count_lines(const char *file, const char *what)
{
	char line[4096];
	int n = 0;
	FILE *stream = fopen(file, "r");
	CHECK(stream != NULL);
	while (fgets(line, sizeof(line), stream))
		n += strstr(line, what) != NULL;
	fclose(stream);
	return n;
}

static inline int count_descriptors(void)
{
	int n = 0;
	DIR *dir = opendir("/proc/self/fd");
	CHECK(dir != NULL);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

/* --- threads that write --- */

/* Of several threads some may lose events: those that run while another one, which lets a sub-buffer begin, is preempted. */

static inline void *write_events(void *n)
{
	for (uintptr_t i = 0; i < (uintptr_t)n; i++)
		trace_test_number((uint32_t)i);
	return NULL;
}

static inline void run_threads(pthread_t *threads, int n, uintptr_t n_events)
{
	for (int i = 0; i < n; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, write_events, (void *)n_events), 0);
}

static inline void join_threads(const pthread_t *threads, int n)
{
	for (int i = 0; i < n; i++)
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
}

#endif
