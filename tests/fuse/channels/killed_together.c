/* SPDX-License-Identifier: MIT */
/*
 * killed_together N MOUNT: read names of channels from standard input, one a line. N processes each write to an equal share of
 * them: to channel i so many records as i modulo RECORDS_MAX, and then reserve one that they never commit. Print a line when
 * all have done so, kill all of them by SIGKILL when standard input ends, and print another line when they are dead.
 */
#include <relayfs/relay.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NAMES_MAX = 100000, PATH_BYTES = 4096, RECORDS_MAX = 7, TORN_BYTES = 16 };

static char *names[NAMES_MAX];

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

static void use_all(const char *mount, int first, int count, int done)
{
	char path[PATH_BYTES];
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (int i = first; i < first + count; i++) {
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

int main(int argc, char **argv)
{
	int n_processes = argc > 2 ? atoi(argv[1]) : 0, n_names = 0, done[2];
	char line[PATH_BYTES / 2], byte;
	while (n_names < NAMES_MAX && fgets(line, sizeof(line), stdin) && *line != '\n') {
		line[strcspn(line, "\n")] = 0;
		names[n_names++] = strdup(line);
	}
	pid_t *pids = calloc((size_t)n_processes + 1, sizeof(*pids));
	if (!n_processes || !pids || pipe(done))
		return 2;
	int share = n_names / n_processes;
	for (int i = 0; i < n_processes; i++) {
		pids[i] = fork();
		if (!pids[i])
			use_all(argv[2], i * share, share, done[1]);
	}
	close(done[1]);
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
	puts("killed");
	return 0;
}
