/* SPDX-License-Identifier: MIT */
/*
 * bench_scale N: read paths of channels from standard input, one a line, and let N processes reserve a record in each channel
 * of their equal share, which they never commit. Print a line when all have done so, and kill all of them when standard input
 * ends; print a second line when they are dead.
 */
#include <relayfs/relay.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PATHS_MAX = 100000, RECORD_BYTES = 16 };

static char *paths[PATHS_MAX];

static void reserve_all(int first, int count, int done)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (int i = first; i < first + count; i++) {
		struct rchan *channel = relay_attach(paths[i]);
		if (!channel || !relay_reserve(channel, RECORD_BYTES)) {
			perror(paths[i]);
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
	int n_processes = argc > 1 ? atoi(argv[1]) : 1, n_paths = 0;
	char line[4096];
	while (n_paths < PATHS_MAX && fgets(line, sizeof(line), stdin) && *line != '\n') {
		line[strcspn(line, "\n")] = 0;
		paths[n_paths++] = strdup(line);
	}
	int done[2], share = n_paths / n_processes;
	pid_t *pids = calloc((size_t)n_processes, sizeof(*pids));
	if (!pids || pipe(done))
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
	puts("killed");
	return 0;
}
