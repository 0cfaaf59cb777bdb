/* SPDX-License-Identifier: MIT */
/*
 * Adds numbered lines as traffic.py's lines(), and after each of them a record that it discards.
 *
 *     discarder MNT/log LINES
 */
#include <relayfs/relay.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	struct rchan *chan = relay_attach(argv[1]);
	if (!chan)
		return 2;
	for (long n = 0, most = atol(argv[2]); n < most; n++) {
		char line[64];
		int length = snprintf(line, sizeof(line), "line %08ld ................\n", n);
		void *record;
		if (relay_write(chan, line, (size_t)length))
			return 1;
		record = relay_reserve(chan, 20);
		if (!record)
			return 1;
		memset(record, 'x', 20);
		relay_discard(chan, record);
	}
	relay_close(chan);
	return 0;
}
