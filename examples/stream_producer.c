/* cc -O2 -o stream_producer stream_producer.c $(pkg-config --cflags --libs relayfs) */
#include <err.h>
#include <errno.h>
#include <relayfs/relay_app.h>
#include <stdio.h>
#include <stdlib.h>

/* Log N numbered lines as fast as possible, for stream_reader to write to disk: stream_producer MNT/app/cpu N
 * While no reader runs, and when a buffer is full, lines are dropped and counted, as is right for a program that
 * must not wait. Any number of these programs may run at once. */
int main(int argc, char **argv)
{
	if (argc != 3)
		errx(2, "usage: stream_producer MNT/app/cpu N");
	/* Make the channel if it does not exist yet. */
	struct rchan *chan = relay_app_attach(argv[1], "subbuf_size=256K n_subbufs=16");
	if (!chan)
		errx(1, "%s: %s", argv[1], relay_strerror(errno));
	long n = atol(argv[2]), dropped = 0;
	int err = 0;
	for (long i = 0; i < n && err != -EPIPE; i++) {
		char line[64];
		int length = snprintf(line, sizeof(line), "line %ld of %ld\n", i, n);
		err = relay_write(chan, line, (size_t)length);
		dropped += err != 0;
	}
	printf("%ld written, %ld dropped\n", n - dropped, dropped);
	if (err == -EPIPE)
		warnx("%s was removed", argv[1]);
	relay_close(chan);
	return err == -EPIPE;
}
