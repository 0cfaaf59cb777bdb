/* cc -O2 -o producer producer.c $(pkg-config --cflags --libs relayfs) */
#include <err.h>
#include <errno.h>
#include <relayfs/relay.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Each line of the standard input becomes a record of a channel: producer MNT/app/cpu <FILE */
int main(int argc, char **argv)
{
	if (argc != 2)
		errx(2, "usage: producer MNT/app/cpu <FILE");
	struct rchan *chan = relay_attach(argv[1]);
	if (!chan)
		errx(1, "%s: %s", argv[1], relay_strerror(errno));
	char *line = NULL;
	size_t size = 0;
	ssize_t length;
	int err = 0;
	while (!err && (length = getline(&line, &size, stdin)) > 0)
		/* Full: wait for a reader. A program that must not wait calls relay_write() and goes on. */
		while ((err = relay_try_write(chan, line, (size_t)length)) == -ENOSPC)
			usleep(1000);
	if (!err)
		err = relay_flush(chan);
	if (err)
		warnx("%s", relay_strerror(-err));
	free(line);
	relay_close(chan);
	return err ? 1 : 0;
}
