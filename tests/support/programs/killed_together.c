/* SPDX-License-Identifier: MIT */
/*
 * killed_together N MOUNT [STORE]: read names of channels from standard input, one a line. N processes share them, and write to
 * them: to channel i so many records as i modulo RECORDS_MAX, and then reserve one that they never commit. Print a line
 * when all have done so, kill all of them by SIGKILL when standard input ends, and print another line when they are dead.
 *
 * With STORE, which the mount shows, all buffers are read then, by which the reservations are counted as torn. The last line
 * says how many were, and how long that took: by the clock, and of CPU time, in ms.
 */
#include <relayfs/relay.h>
#include <relayfs/store.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { NAMES_MAX = 100000, PATH_BYTES = 4096, RECORDS_MAX = 7, TORN_BYTES = 16, SPANS = 4 };

static char *names[NAMES_MAX];

/* ------------------------------------------------------------------ producers */

static int use(const char *path, int n_records, int number)
{
	char record[32];
	struct rchan *channel = relay_attach(path);
	if (!channel)
		return -1;
	for (int i = 0; i < n_records; i++)
		relay_write(channel, record, (size_t)snprintf(record, sizeof(record), "%d %d\n", number, i));
	return relay_reserve(channel, TORN_BYTES) ? 0 : -1;
}

static void use_all(const char *mount, int first, int end, int done)
{
	char path[PATH_BYTES];
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (int i = first; i < end; i++) {
		snprintf(path, sizeof(path), "%s/%s", mount, names[i]);
		if (use(path, i % RECORDS_MAX, i)) {
			perror(path);
			_exit(1);
		}
	}
	if (write(done, "", 1) != 1)
		_exit(1);
	for (;;)
		pause();
}

/* Start the producers, and store their numbers. 0 if all have reserved. */
static int start(const char *mount, int n_names, int n_processes, pid_t *pids)
{
	int done[2];
	char byte;
	if (pipe(done))
		return -1;
	for (int i = 0; i < n_processes; i++) {
		pids[i] = fork();
		if (!pids[i])
			use_all(mount, i * n_names / n_processes, (i + 1) * n_names / n_processes, done[1]);
	}
	close(done[1]);
	for (int i = 0; i < n_processes; i++)
		if (read(done[0], &byte, 1) != 1)
			return -1;
	return 0;
}

/* ------------------------------------------------------------------ what is counted of them */

/* Read all that a buffer has, and return how many of its records were torn; -1: there is no such buffer. */
static long read_buffer(const char *mem_file)
{
	struct rchan_buf *buf = relay_buf_open(mem_file);
	struct relay_span spans[SPANS];
	struct relay_stats stats = {0};
	size_t total;
	if (!buf)
		return -1;
	while (relay_consume_begin(buf, SIZE_MAX, spans, SPANS, &total) > 0)
		relay_consume_end(buf);
	relay_buf_stats(buf, &stats);
	relay_buf_release(buf);
	return (long)stats.lost_torn_records;
}

static double ms_of(clockid_t clock)
{
	struct timespec time;
	clock_gettime(clock, &time);
	return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}

static void account(const char *store, int n_names)
{
	char path[PATH_BYTES];
	long torn = 0, found;
	double begun = ms_of(CLOCK_MONOTONIC), used = ms_of(CLOCK_PROCESS_CPUTIME_ID);
	for (int i = 0; i < n_names; i++)
		for (int number = 0;; number++, torn += found) {
			snprintf(path, sizeof(path), "%s/%s/mem%d", store, names[i], number);
			found = read_buffer(path);
			if (found < 0)
				break;
		}
	printf("%ld %f %f\n", torn, ms_of(CLOCK_MONOTONIC) - begun, ms_of(CLOCK_PROCESS_CPUTIME_ID) - used);
}

int main(int argc, char **argv)
{
	int n_processes = argc > 2 ? atoi(argv[1]) : 0, n_names = 0;
	char line[PATH_BYTES / 2];
	while (n_names < NAMES_MAX && fgets(line, sizeof(line), stdin) && *line != '\n') {
		line[strcspn(line, "\n")] = 0;
		names[n_names++] = strdup(line);
	}
	pid_t *pids = calloc((size_t)n_processes + 1, sizeof(*pids));
	if (!n_processes || !pids || start(argv[2], n_names, n_processes, pids))
		return 1;
	puts("reserved");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin))
		;
	for (int i = 0; i < n_processes; i++)
		kill(pids[i], SIGKILL);
	while (wait(NULL) > 0)
		;
	puts("killed");
	fflush(stdout);
	if (argc > 3)
		account(argv[3], n_names);
	return 0;
}
