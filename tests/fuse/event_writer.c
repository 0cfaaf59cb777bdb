/* SPDX-License-Identifier: MIT */
/*
 * Writes events to a process's directory of a trace, as the library does, but when it is told to:
 *
 *     event_writer        first line on stdin: DIR CPU CLOCK; then commands, each of which it answers with a number
 *
 * N            write N events, answer how many were lost
 * patient N    the same, each as soon as there is room; answer how often there was none
 * flat         write until it is killed, and tell each hundred how many
 * declare NAME further events are of this name
 * flush
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <relayfs/trace_store.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct rchan_buf *buf;
static int events_fd, uses_tsc;
static uint64_t n_names, id;

struct event {
	uint64_t timestamp, id, n, fill;
};

static uint64_t now(void)
{
	struct relay_clocks clocks;
	relay_clocks_read(&clocks);
	return uses_tsc ? clocks.tsc : clocks.mono_ns;
}

static int write_event(uint64_t n)
{
	struct event event = {0, id, n, n};
	void *to;
	int err = relay_buf_reserve(buf, sizeof(event), &to);
	if (err)
		return err;
	/* Not before: the sub-buffer may have begun just now. */
	event.timestamp = now();
	memcpy(to, &event, sizeof(event));
	relay_buf_commit(buf, to);
	return 0;
}

static void declare(const char *name)
{
	char text[512];
	id = 1000 + n_names++;
	int length = snprintf(text, sizeof(text),
	                      "event {\n\tname = \"test:%s\";\n\tid = %llu;\n\tstream_id = 0;\n\tfields := struct {\n"
	                      "\t\tuint64_t _n;\n\t\tuint64_t _fill;\n\t};\n};\n",
	                      name, (unsigned long long)id);
	if (write(events_fd, text, (size_t)length) != length)
		exit(3);
}

/* How often it was refused, each of which counts as lost. */
static uint64_t write_patiently(uint64_t n)
{
	uint64_t refused = 0;
	for (; write_event(n) == -ENOSPC; refused++)
		usleep(200);
	return refused;
}

static void open_all(const char *dir, unsigned cpu)
{
	char path[4224];
	struct flock lock = {.l_type = F_RDLCK};
	snprintf(path, sizeof(path), "%s/.events", dir);
	events_fd = open(path, O_RDWR | O_APPEND);
	if (events_fd < 0 || fcntl(events_fd, F_SETLK, &lock))
		exit(1);
	snprintf(path, sizeof(path), "%s/cpu/mem%u", dir, cpu);
	buf = relay_buf_open(path);
	if (!buf)
		exit(2);
	declare("first");
}

int main(void)
{
	char line[4096], dir[4096], word[256];
	unsigned cpu;
	uint64_t n = 0, count;
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!fgets(line, sizeof(line), stdin) || sscanf(line, "%4095s %u %d", dir, &cpu, &uses_tsc) != 3)
		return 4;
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
				if (n % 100 == 0)
					printf("%lu\n", n);
			}
		else if (sscanf(line, "%lu", &count) == 1)
			for (; count; count--)
				lost += write_event(n++) != 0;
		printf("%lu\n", lost);
	}
	return 0;
}
