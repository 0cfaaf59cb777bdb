/* SPDX-License-Identifier: MIT */
/*
 * A lockless producer that never comes to its commit: it stops inside the copy of a record, where a signal finds
 * it because the record's source is a page that it may not read.
 *
 *     stuck_writer MNT/app/cpu
 *
 * Writes "before\n", then prints "stuck" from inside the second record and sleeps for ever.
 */
#include <relayfs/relay.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void stuck(int signum)
{
	(void)signum;
	ssize_t ignored = write(STDOUT_FILENO, "stuck\n", 6);
	(void)ignored;
	for (;;)
		pause();
}

int main(int argc, char **argv)
{
	struct rchan *chan = argc == 2 ? relay_attach(argv[1]) : NULL;
	if (!chan) {
		perror(argv[1]);
		return 2;
	}
	if (relay_write(chan, "before\n", 7))
		return 1;
	char *page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	signal(SIGSEGV, stuck);
	if (page == MAP_FAILED)
		return 2;
	relay_write(chan, page, 100);
	return 1;
}
