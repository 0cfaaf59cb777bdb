/* cc -O2 -o producer producer.c $(pkg-config --cflags --libs relayfs) */
#include <errno.h>
#include <relayfs/relay.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Each line of the standard input becomes a record of a channel: producer MNT/app/cpu <FILE */
int main(int argc, char **argv)
{
	if (argc != 2) {
		fprintf(stderr, "usage: producer MNT/app/cpu <FILE\n");
		return 2;
	}
	struct rchan *chan = relay_attach(argv[1]);
	if (!chan) {
		fprintf(stderr, "producer: %s: %s\n", argv[1], relay_strerror(errno));
		return 1;
	}
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
		fprintf(stderr, "producer: %s\n", relay_strerror(-err));
	free(line);
	relay_close(chan);
	return err ? 1 : 0;
}
