/* SPDX-License-Identifier: MIT */
/*
 * A producer that discards nearly everything.
 *
 *     discarder N MNT/PATH...
 *
 * Each channel gets a line, N discarded records, and another line.
 */
#include <relayfs/relay.h>
#include <stdio.h>
#include <stdlib.h>

enum { RECORD = 16 };

static void fill(struct rchan *chan, long n)
{
	if (relay_write(chan, "first\n", 6))
		exit(2);
	while (n--) {
		void *reserved = relay_reserve(chan, RECORD);
		if (!reserved)
			exit(3);
		relay_discard(chan, reserved);
	}
	if (relay_write(chan, "last\n", 5))
		exit(4);
}

int main(int argc, char **argv)
{
	for (int i = 2; i < argc; i++) {
		struct rchan *chan = relay_attach(argv[i]);
		if (!chan) {
			perror(argv[i]);
			return 1;
		}
		fill(chan, atol(argv[1]));
		relay_close(chan);
	}
	return 0;
}
