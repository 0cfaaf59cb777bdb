/* SPDX-License-Identifier: MIT */
/*
 * Adds numbered lines to a channel until its standard input ends, then prints how many it wrote.
 *
 *     line_producer MNT/app/cpu CPU FIRST BURST PAUSE_MS [LINES]
 *
 * CPU -1: wherever it runs. It writes BURST lines at a time and pauses in between; after LINES lines it waits
 * for the end of its input. A refused line ends it with status 1: tests give it room enough.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <relayfs/relay.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void pin(int cpu)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (cpu >= 0 && sched_setaffinity(0, sizeof(set), &set)) {
		perror("sched_setaffinity");
		exit(2);
	}
}

/* Did the input end within the pause? */
static int told_to_end(int pause_ms)
{
	struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
	char byte;
	return poll(&input, 1, pause_ms) > 0 && read(STDIN_FILENO, &byte, 1) <= 0;
}

int main(int argc, char **argv)
{
	if (argc < 6)
		return 2;
	pin(atoi(argv[2]));
	struct rchan *chan = relay_attach(argv[1]);
	if (!chan) {
		perror(argv[1]);
		return 2;
	}
	long first = atol(argv[3]), burst = atol(argv[4]), most = argc > 6 ? atol(argv[6]) : -1, n = 0;
	int pause_ms = atoi(argv[5]);
	do {
		for (long i = 0; i < burst && n != most; i++, n++) {
			char line[64];
			int length = snprintf(line, sizeof(line), "line %08ld ................\n", first + n);
			int err = relay_write(chan, line, (size_t)length);
			if (err) {
				fprintf(stderr, "line %ld: %s\n", first + n, strerror(-err));
				return 1;
			}
		}
	} while (!told_to_end(n == most ? -1 : pause_ms));
	relay_close(chan);
	printf("%ld\n", n);
	return 0;
}
