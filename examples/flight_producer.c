/* cc -O2 -o flight_producer flight_producer.c $(pkg-config --cflags --libs relayfs) */
#include <err.h>
#include <errno.h>
#include <relayfs/relay_app.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* A flight recorder: the last 512 KiB of each CPU's records stay in memory, even if the program dies:
 * flight_producer MNT/app/flight N
 * It needs no reader: no record is refused, and the oldest ones are overwritten. flight_reader reads them. */
int main(int argc, char **argv)
{
	if (argc != 3)
		errx(2, "usage: flight_producer MNT/app/flight N");
	struct rchan *chan = relay_app_attach(argv[1], "mode=overwrite subbuf_size=64K n_subbufs=8");
	if (!chan)
		errx(1, "%s: %s", argv[1], relay_strerror(errno));
	long n = atol(argv[2]);
	for (long i = 1; i <= n; i++) {
		char line[96];
		struct timespec now;
		clock_gettime(CLOCK_MONOTONIC, &now);
		/* The time comes first, so that sort -n merges the files of all CPUs. */
		int length = snprintf(line, sizeof(line), "%ld.%09ld event %ld\n", (long)now.tv_sec, now.tv_nsec, i);
		relay_write(chan, line, (size_t)length);
	}
	abort(); /* the crash */
}
