/* cc -O2 -o reader reader.c $(pkg-config --cflags --libs relayfs) */
#include <err.h>
#include <errno.h>
#include <relayfs/reader.h>
#include <relayfs/relay.h>
#include <stdio.h>

/* Print a relay file from shared memory, without a copy, until the channel is removed:
 * reader MNT/app/cpu0 */
int main(int argc, char **argv)
{
	if (argc != 2)
		errx(2, "usage: reader MNT/app/cpu0");
	struct relay_reader *reader = relay_reader_open(argv[1]);
	if (!reader)
		errx(1, "%s: %s", argv[1], relay_strerror(errno));
	const void *data;
	size_t length;
	int got;
	/* -EBUSY: another reader was reading all the time. */
	while ((got = relay_reader_next(reader, &data, &length, -1)) == 1 || got == -EBUSY || got == -EINTR) {
		if (got != 1)
			continue;
		fwrite(data, 1, length, stdout);
		fflush(stdout);
		/* Only in overwrite mode: producers overwrote the data while it was printed. */
		if (relay_reader_done(reader) == -EOVERFLOW)
			warnx("the last %zu bytes may be garbled", length);
	}
	if (got < 0)
		warnx("%s", relay_strerror(-got));
	relay_reader_close(reader);
	return got < 0 ? 1 : 0;
}
