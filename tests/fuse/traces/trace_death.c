/* SPDX-License-Identifier: MIT */
/*
 * A traced program that dies:
 *
 *     trace_death HOW N    N events death:step, numbered from 0; each is acknowledged by a byte on the standard output. Then
 *                          it waits for a byte of the standard input, or its end, and ends as HOW says: segv, abort, exit, _exit, end
 *                          (relay_trace_end(), then _exit), eat
 *                          (memory, until it is killed), again (becomes this program anew, which ends by exit)
 *     trace_death flood 0  events for ever, which are acknowledged as well
 */
#include <relayfs/trace.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

RELAY_TRACE_EVENT(death, step, (u64, seq))

enum { STATUS = 7, PIECE = 1 << 20 };

static void step(uint64_t seq)
{
	trace_death_step(seq);
	if (write(1, ".", 1) != 1)
		_exit(1);
}

static void eat(void)
{
	for (;;)
		memset(malloc(PIECE), 1, PIECE);
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "exit";
	const uint64_t n = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
	char byte;

	for (uint64_t seq = 0; seq < n || strcmp(how, "flood") == 0; seq++)
		step(seq);
	if (read(0, &byte, 1) < 0)
		return 1;
	if (strcmp(how, "segv") == 0)
		*(volatile char *)NULL = 1;
	else if (strcmp(how, "abort") == 0)
		abort();
	else if (strcmp(how, "_exit") == 0)
		_exit(STATUS);
	else if (strcmp(how, "end") == 0)
		relay_trace_end(), _exit(STATUS);
	else if (strcmp(how, "eat") == 0)
		eat();
	else if (strcmp(how, "again") == 0)
		execl("/proc/self/exe", argv[0], "exit", "0", NULL);
	exit(STATUS);
}
