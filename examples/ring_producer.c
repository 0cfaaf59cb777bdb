/* cc -O2 -o ring_producer ring_producer.c $(pkg-config --cflags --libs relayfs) */
#include <err.h>
#include <errno.h>
#include <relayfs/relay.h>
#include <relayfs/ring.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Reserve a record, which readers do not see before it is committed. If the ring is full, wait for a consumer; refused
 * attempts are not counted as lost. A program that must not wait calls this once without the flag. NULL and errno. */
static char *reserve(struct relay_rings *rings, size_t length)
{
	char *record;
	while (!(record = relay_rings_reserve(rings, length, RELAY_RING_WILL_RETRY)) && errno == EAGAIN) {
		if (length > relay_ring_query(rings->ring[0], RELAY_RING_RING_SIZE) - 16) {
			errno = EMSGSIZE;
			break;
		}
		usleep(1000);
	}
	return record;
}

/* Each line of the standard input becomes a record of a ring: ring_producer MNT/app/events <FILE */
int main(int argc, char **argv)
{
	if (argc != 2)
		errx(2, "usage: ring_producer MNT/app/events <FILE");
	struct relay_rings *rings = relay_rings_attach(argv[1]);
	if (!rings)
		errx(1, "%s: %s", argv[1], relay_strerror(errno));
	char *line = NULL;
	size_t size = 0;
	ssize_t length;
	while ((length = getline(&line, &size, stdin)) > 0) {
		char *record = reserve(rings, (size_t)length);
		if (!record)
			break;
		/* A real program would build its record here, in place. */
		memcpy(record, line, (size_t)length);
		relay_ring_commit(record, 0);
	}
	int err = length > 0 ? errno : 0;
	if (err)
		warnx("%s", relay_strerror(err));
	free(line);
	relay_rings_close(rings);
	return err ? 1 : 0;
}
