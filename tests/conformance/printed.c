/* SPDX-License-Identifier: MIT */
/*
 * A client of the relay interface as its document describes it: the callbacks are those printed there, with files of
 * a relayfs mount in place of debugfs's. SUBBUF_START is the file that holds subbuf_start; without it there is none.
 *
 *     printed open PARENT SUBBUF_SIZE N_SUBBUFS      or: printed attach CHANNEL
 *
 * Then operations on the standard input, one a line:
 *
 *     write TEXT   __write TEXT   reserve TEXT   cpu NUMBER   flush   reset   consumed CPU N   close
 *
 * Each is answered by what the function returned: 0 or an errno's name.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <relayfs/relay.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#pragma GCC diagnostic ignored "-Wunused-parameter"
#ifdef SUBBUF_START
#include SUBBUF_START
#endif

static const char *create_buf_file_handler(const char *filename, const char *parent, int mode, struct rchan_buf *buf,
                                           int *is_global)
{
	return relay_create_file(filename, parent, mode, buf);
}

static int remove_buf_file_handler(const char *file)
{
	relay_remove_file(file);

	return 0;
}

static struct rchan_callbacks relay_callbacks = {
    .create_buf_file = create_buf_file_handler,
    .remove_buf_file = remove_buf_file_handler,
};

static struct rchan *chan;

static int answer(int err)
{
	puts(err ? strerrorname_np(err < 0 ? -err : err) : "0");
	fflush(stdout);
	return err;
}

static int go_to(int cpu)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	return sched_setaffinity(0, sizeof(set), &set) ? errno : 0;
}

static int reserve(const char *text)
{
	void *slot = relay_reserve(chan, strlen(text));
	if (!slot)
		return errno;
	memcpy(slot, text, strlen(text));
	relay_commit(chan, slot);
	return 0;
}

static int obey(const char *line)
{
	char text[4096] = "";
	unsigned cpu;
	size_t n;
	if (sscanf(line, "write %4095[^\n]", text) == 1)
		return relay_write(chan, text, strlen(text));
	if (sscanf(line, "__write %4095[^\n]", text) == 1)
		return __relay_write(chan, text, strlen(text));
	if (sscanf(line, "reserve %4095[^\n]", text) == 1)
		return reserve(text);
	if (sscanf(line, "cpu %u", &cpu) == 1)
		return go_to((int)cpu);
	if (sscanf(line, "consumed %u %zu", &cpu, &n) == 2)
		return relay_subbufs_consumed(chan, cpu, n);
	if (!strcmp(line, "flush\n"))
		return relay_flush(chan);
	if (!strcmp(line, "reset\n"))
		return relay_reset(chan);
	if (!strcmp(line, "close\n")) {
		relay_close(chan);
		return 0;
	}
	return ENOSYS;
}

int main(int argc, char **argv)
{
	static char line[8192];
#ifdef SUBBUF_START
	relay_callbacks.subbuf_start = subbuf_start;
#endif
	if (argc == 3)
		chan = relay_attach_callbacks(argv[2], &relay_callbacks, NULL);
	else if (argc == 5)
		chan = relay_open("cpu", argv[2], strtoull(argv[3], NULL, 10), strtoull(argv[4], NULL, 10),
		                  &relay_callbacks, NULL);
	if (answer(chan ? 0 : errno))
		return 1;
	while (fgets(line, sizeof(line), stdin))
		answer(obey(line));
	return 0;
}
