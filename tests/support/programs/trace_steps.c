/* SPDX-License-Identifier: MIT */
/*
 * A traced program that does as it is told on the standard input, one command a line, and answers each with 0:
 *
 *     step N       N events test:step, numbered on
 *     other N      N events other:step, numbered on
 *     log TEXT     relay_log(); answers what that returned
 *
 *     trace_steps N    N events test:step, and that is it
 */
#include <inttypes.h>
#include <relayfs/trace.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

RELAY_TRACE_EVENT(test, step, (u64, seq))
RELAY_TRACE_EVENT(other, step, (u64, seq))

static uint64_t n_steps, n_others;

static int obey(char *line)
{
	uint64_t n;

	line[strcspn(line, "\n")] = 0;
	if (strncmp(line, "log ", 4) == 0)
		return relay_log("%s", line + 4);
	if (sscanf(line, "step %" SCNu64, &n) == 1) {
		while (n--)
			trace_test_step(n_steps++);
		return 0;
	}
	if (sscanf(line, "other %" SCNu64, &n) == 1) {
		while (n--)
			trace_other_step(n_others++);
		return 0;
	}
	return -1;
}

int main(int argc, char **argv)
{
	char line[4096];

	if (argc > 1) {
		snprintf(line, sizeof(line), "step %s", argv[1]);
		return obey(line);
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	while (fgets(line, sizeof(line), stdin))
		printf("%d\n", obey(line));
	return 0;
}
