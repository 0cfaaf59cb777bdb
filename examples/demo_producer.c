/* cc -O2 -o demo_producer demo_producer.c $(pkg-config --cflags --libs relayfs) */
/*
 * Write each line of the standard input as a record, and never into a full buffer:
 *
 *     demo_producer CHANNEL UNREAD_FILE LIMIT <FILE
 *
 * Every record that a full buffer refuses is counted as lost, even if it is written again later. So this program first
 * reads the file `unread_bytes` of .channels, and waits while readers are more than LIMIT bytes behind. It prints how
 * often a record was refused all the same.
 */
#include <err.h>
#include <errno.h>
#include <relayfs/relay.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int wait_for_readers(const char *unread_file, unsigned long long limit)
{
	for (;;) {
		unsigned long long unread;
		FILE *file = fopen(unread_file, "r");
		int got = file ? fscanf(file, "%llu", &unread) : 0;
		if (file)
			fclose(file);
		if (got != 1)
			return -EIO;
		if (unread <= limit)
			return 0;
		usleep(500);
	}
}

static int write_record(struct rchan *chan, const char *line, size_t length, unsigned long *refused)
{
	int err;
	while ((err = relay_write(chan, line, length)) == -ENOSPC) {
		++*refused;
		usleep(500);
	}
	return err;
}

static int write_lines(struct rchan *chan, const char *unread_file, unsigned long long limit, unsigned long *refused)
{
	char *line = NULL;
	size_t size = 0;
	ssize_t length;
	/* Reading the file is slow compared to writing, so each producer overshoots the limit by at most this much. */
	unsigned long long stride = limit / 8, written = stride;
	int err = 0;
	while (!err && (length = getline(&line, &size, stdin)) > 0) {
		if (written >= stride) {
			written = 0;
			err = wait_for_readers(unread_file, limit);
		}
		if (!err)
			err = write_record(chan, line, (size_t)length, refused);
		written += (unsigned long long)length;
	}
	free(line);
	return err;
}

int main(int argc, char **argv)
{
	if (argc != 4)
		errx(2, "usage: demo_producer CHANNEL UNREAD_FILE LIMIT <FILE");
	struct rchan *chan = relay_attach(argv[1]);
	if (!chan)
		errx(1, "%s: %s", argv[1], relay_strerror(errno));
	unsigned long refused = 0;
	int err = write_lines(chan, argv[2], strtoull(argv[3], NULL, 10), &refused);
	if (!err)
		err = relay_flush(chan);
	relay_close(chan);
	if (err)
		warnx("%s", relay_strerror(-err));
	printf("%lu\n", refused);
	return err ? 1 : 0;
}
