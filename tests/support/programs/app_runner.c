/* SPDX-License-Identifier: MIT */
/*
 * A relay_app that does what its standard input says.
 *
 *     app_runner MNT/app/cpu OUTPUT [read] [append] [keep] [pieces] [create=KEYS]
 *
 * pieces: with process_subbuf() in place of files; it writes each piece to OUTPUTn itself, and "length padding" to
 * OUTPUTn.pieces. Commands, a line each, each answered by a line:
 *
 *     start, stop   0, or the name of the error
 *     stats         sums over all buffers: bytes pieces max_backlog lost_records lost_bytes
 *     over MS       1: relay_app_fd() became readable within that time; 0: it did not
 *     limit N       relay_app_limit(): 0, or the name of the error
 *     refuse N      process_subbuf() fails with EDOM from now on (N 1) or no longer (N 0)
 *
 * At the end of its input it closes the app.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <relayfs/relay_app.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *output;
static int refuses;

/* 0 or -errno. */
static int append(unsigned cpu, const char *suffix, const void *data, size_t length)
{
	char path[4096];
	snprintf(path, sizeof(path), "%s%u%s", output, cpu, suffix);
	int fd = open(path, O_WRONLY | O_APPEND | O_CREAT, 0600);
	ssize_t n = write(fd, data, length);
	close(fd);
	return n == (ssize_t)length ? 0 : -EIO;
}

static int process(struct relay_app *app, unsigned cpu, const void *data, size_t length, size_t padding)
{
	char line[64];
	struct relay_app_stats stats;
	if (__atomic_load_n(&refuses, __ATOMIC_RELAXED))
		return -EDOM;
	if (relay_app_private(app) != &output || relay_app_stats(app, cpu, &stats) || cpu >= relay_app_n_buffers(app))
		return -EFAULT;
	int n = snprintf(line, sizeof(line), "%zu %zu\n", length, padding);
	int err = append(cpu, "", data, length);
	return err ? err : append(cpu, ".pieces", line, (size_t)n);
}

static void print_stats(struct relay_app *app)
{
	struct relay_app_stats sum = {0};
	for (unsigned cpu = 0; cpu < relay_app_n_buffers(app); cpu++) {
		struct relay_app_stats stats;
		if (relay_app_stats(app, cpu, &stats))
			abort();
		sum.bytes += stats.bytes;
		sum.pieces += stats.pieces;
		sum.max_backlog = stats.max_backlog > sum.max_backlog ? stats.max_backlog : sum.max_backlog;
		sum.lost_records += stats.lost_records;
		sum.lost_bytes += stats.lost_bytes;
	}
	printf("%lu %lu %lu %lu %lu\n", sum.bytes, sum.pieces, sum.max_backlog, sum.lost_records, sum.lost_bytes);
}

static void print_result(int err)
{
	puts(err ? strerrorname_np(-err) : "0");
}

static void obey(struct relay_app *app, const char *command)
{
	if (!strcmp(command, "start"))
		print_result(relay_app_start(app));
	else if (!strcmp(command, "stop"))
		print_result(relay_app_stop(app));
	else if (!strcmp(command, "stats"))
		print_stats(app);
	else if (!strncmp(command, "over ", 5))
		printf("%d\n", poll(&(struct pollfd){.fd = relay_app_fd(app), .events = POLLIN}, 1, atoi(command + 5)));
	else if (!strncmp(command, "limit ", 6))
		print_result(relay_app_limit(app, strtoull(command + 6, NULL, 10)));
	else if (!strncmp(command, "refuse ", 7))
		printf("%d\n", __atomic_exchange_n(&refuses, atoi(command + 7), __ATOMIC_RELAXED));
	else
		abort();
	fflush(stdout);
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	output = argv[2];
	struct relay_app_options options = {.size = sizeof(options), .output = output, .private_data = &output};
	for (char **arg = argv + 3; *arg; arg++) {
		if (!strcmp(*arg, "read"))
			options.way = RELAY_APP_READ;
		else if (!strcmp(*arg, "append"))
			options.append = 1;
		else if (!strcmp(*arg, "keep"))
			options.keep_enabled = 1;
		else if (!strcmp(*arg, "pieces"))
			options.output = NULL, options.process_subbuf = process;
		else if (!strncmp(*arg, "create=", 7))
			options.create = *arg + 7;
		else
			return 2;
	}
	struct relay_app *app = relay_app_open(argv[1], &options);
	puts(app ? "0" : strerrorname_np(errno));
	fflush(stdout);
	if (!app)
		return 1;
	char *line = NULL;
	size_t size = 0;
	for (ssize_t n; (n = getline(&line, &size, stdin)) > 0;) {
		line[n - 1] = 0;
		obey(app, line);
	}
	free(line);
	relay_app_close(app);
	return 0;
}
