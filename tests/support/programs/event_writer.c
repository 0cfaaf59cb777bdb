/* SPDX-License-Identifier: MIT */
/*
 * Writes events to a trace when it is told to; on stdin first DIR, its directory in the trace, and CPU, where it runs; then
 * commands, each of which it answers with a number:
 *
 * N            write N events, answer how many were lost
 * patient N    the same, each until there is room for it; answer how often there was none, which counts as lost, too
 * flat         write until it is killed, and tell each hundred how many
 * declare NAME further events are of this name
 * flush
 */
#define _GNU_SOURCE
#include <relayfs/store.h>
#include <relayfs/trace.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct rchan_buf *buf;
static struct relay_trace_event *declared;

static void declare(const char *name)
{
	static const struct relay_trace_field fields[] = {{"n", RELAY_TRACE_U64}, {"fill", RELAY_TRACE_U64}};
	declared = relay_trace_declare("test", name, fields, 2);
	if (!declared)
		exit(3);
}

static uint64_t n_lost(void)
{
	struct relay_stats stats;
	if (relay_buf_stats(buf, &stats))
		exit(4);
	return stats.lost_full_records;
}

/* Returns how many were lost: 0 or 1. */
static uint64_t write_event(uint64_t n)
{
	struct {
		struct relay_trace_record head;
		uint64_t n, fill;
	} event = {.n = n, .fill = n};
	uint64_t before = n_lost();
	if (relay_trace_wants(declared))
		relay_trace_emit(declared, &event.head, sizeof(event));
	return n_lost() - before;
}

static uint64_t write_patiently(uint64_t n)
{
	uint64_t refused = 0;
	for (; write_event(n); refused++)
		usleep(200);
	return refused;
}

static void open_all(const char *dir, unsigned cpu)
{
	char path[4224];
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		exit(1);
	declare("first");
	relay_trace_prepare();
	snprintf(path, sizeof(path), "%s/cpu/mem%u", dir, cpu);
	buf = relay_buf_open(path);
	if (!buf)
		exit(2);
}

int main(void)
{
	char line[4352], dir[4096], word[256];
	unsigned cpu;
	uint64_t n = 0, count;
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!fgets(line, sizeof(line), stdin) || sscanf(line, "%4095s %u", dir, &cpu) != 2)
		return 5;
	open_all(dir, cpu);
	puts("ready");
	while (fgets(line, sizeof(line), stdin)) {
		uint64_t lost = 0;
		if (sscanf(line, "declare %255s", word) == 1)
			declare(word);
		else if (sscanf(line, "patient %lu", &count) == 1)
			for (; count; count--)
				lost += write_patiently(n++);
		else if (strcmp(line, "flush\n") == 0)
			relay_buf_flush(buf);
		else if (strcmp(line, "flat\n") == 0)
			for (;;) {
				write_patiently(n++);
				if (n % 100)
					continue;
				printf("%lu\n", n);
				usleep(5000); /* so that its judge can keep up */
			}
		else if (sscanf(line, "%lu", &count) == 1)
			for (; count; count--)
				lost += write_event(n++);
		printf("%lu\n", lost);
	}
	return 0;
}
