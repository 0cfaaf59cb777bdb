/* SPDX-License-Identifier: MIT */
/*
 * bench_scale N MOUNT STORE: read names of channels from standard input, one a line, and let N processes reserve a record in
 * each channel of their equal share, which they never commit. Print a line when all have done so, and kill all of them when
 * standard input ends; then read all buffers, and print how many records are counted as torn, and the CPU time of that in ms.
 */
#include <relayfs/relay.h>
#include <relayfs/store.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { NAMES_MAX = 100000, PATH_BYTES = 4200, RECORD_BYTES = 16, SPANS = 4 };

static char *names[NAMES_MAX];
static const char *mount, *store;

static void reserve_all(int first, int count, int done)
{
	char path[PATH_BYTES];
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (int i = first; i < first + count; i++) {
		snprintf(path, sizeof(path), "%s/%s", mount, names[i]);
		struct rchan *channel = relay_attach(path);
		if (!channel || !relay_reserve(channel, RECORD_BYTES)) {
			perror(path);
			_exit(1);
		}
	}
	if (write(done, "", 1) != 1)
		_exit(1);
	for (;;)
		pause();
}

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

static void account(int n_names)
{
	char path[PATH_BYTES];
	long torn = 0, found;
	clock_t begun = clock();
	for (int i = 0; i < n_names; i++)
		for (int number = 0;; number++, torn += found) {
			snprintf(path, sizeof(path), "%s/%s/mem%d", store, names[i], number);
			found = read_buffer(path);
			if (found < 0)
				break;
		}
	printf("%ld %f\n", torn, (double)(clock() - begun) * 1000 / CLOCKS_PER_SEC);
}

int main(int argc, char **argv)
{
	int n_processes = argc > 3 ? atoi(argv[1]) : 0, n_names = 0;
	char line[PATH_BYTES / 2];
	mount = argv[2];
	store = argv[3];
	while (n_names < NAMES_MAX && fgets(line, sizeof(line), stdin) && *line != '\n') {
		line[strcspn(line, "\n")] = 0;
		names[n_names++] = strdup(line);
	}
	int done[2], share = n_processes ? n_names / n_processes : 0;
	pid_t *pids = calloc((size_t)n_processes, sizeof(*pids));
	if (!share || !pids || pipe(done))
		return 1;
	for (int i = 0; i < n_processes; i++) {
		pids[i] = fork();
		if (!pids[i])
			reserve_all(i * share, share, done[1]);
	}
	close(done[1]);
	char byte;
	for (int i = 0; i < n_processes; i++)
		if (read(done[0], &byte, 1) != 1)
			return 1;
	puts("reserved");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin))
		;
	for (int i = 0; i < n_processes; i++)
		kill(pids[i], SIGKILL);
	while (wait(NULL) > 0)
		;
	account(n_names);
	return 0;
}
