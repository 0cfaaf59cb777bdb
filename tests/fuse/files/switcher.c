/* SPDX-License-Identifier: MIT */
/*
 * Writes numbered records of 16 bytes, each of which fills a sub-buffer of that size; waits while the buffer is full.
 *
 *     switcher MNT/app/cpu RECORDS
 */
#include <errno.h>
#include <relayfs/relay.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	struct rchan *chan = relay_attach(argv[1]);
	if (!chan)
		return 2;
	int err = 0;
	for (long n = 0, most = atol(argv[2]); n < most && !err; n++) {
		char record[32];
		snprintf(record, sizeof(record), "%015ld\n", n);
		while ((err = relay_write(chan, record, 16)) == -ENOSPC)
			sched_yield();
	}
	/* Without a write after it the last sub-buffer would not be finished, and nobody told. */
	err = err ? err : relay_flush(chan);
	relay_close(chan);
	return err ? 1 : 0;
}
