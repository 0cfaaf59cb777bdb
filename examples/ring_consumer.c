/* cc -O2 -o ring_consumer ring_consumer.c $(pkg-config --cflags --libs relayfs) */
#include <err.h>
#include <errno.h>
#include <relayfs/relay.h>
#include <relayfs/ring.h>
#include <stdio.h>

/* Called for each record, in place. */
static int show(void *out, const void *data, size_t length)
{
	return fwrite(data, 1, length, out) == length ? 0 : -EIO;
}

/* Print the records of a ring until it is removed: ring_consumer MNT/app/events */
int main(int argc, char **argv)
{
	if (argc != 2)
		errx(2, "usage: ring_consumer MNT/app/events");
	struct relay_rings *rings = relay_rings_attach(argv[1]);
	if (!rings)
		errx(1, "%s: %s", argv[1], relay_strerror(errno));
	unsigned n_ended = 0;
	int got = 0;
	while (n_ended < rings->n && got >= 0) {
		got = relay_ring_wait(rings->ring, rings->n, -1);
		n_ended = 0;
		for (unsigned i = 0; i < rings->n && got >= 0; i++) {
			got = relay_ring_consume(rings->ring[i], show, stdout, 0);
			if (got == -EPIPE) { /* removed, and all records have been read */
				n_ended++;
				got = 0;
			}
		}
		fflush(stdout);
	}
	if (got < 0)
		warnx("%s", relay_strerror(-got));
	relay_rings_close(rings);
	return got < 0 ? 1 : 0;
}
