/* cc -O2 -o flight_reader flight_reader.c $(pkg-config --cflags --libs relayfs) */
#include <err.h>
#include <errno.h>
#include <relayfs/relay_app.h>
#include <stdio.h>

/* Read the records of a flight recorder, after a crash or while programs still write: flight_reader MNT/app/flight OUTPUT
 * and then: sort -n OUTPUT* */
int main(int argc, char **argv)
{
	if (argc != 3)
		errx(2, "usage: flight_reader MNT/app/flight OUTPUT");
	struct relay_app_options options = {.size = sizeof(options), .output = argv[2], .keep_enabled = 1};
	struct relay_app *app = relay_app_open(argv[1], &options);
	if (!app)
		errx(1, "%s: %s", argv[1], relay_strerror(errno));
	int err = relay_app_start(app);
	/* Read up to this moment; later records stay for the next run. */
	if (!err)
		err = relay_app_stop(app);
	unsigned long bytes = 0;
	for (unsigned cpu = 0; cpu < relay_app_n_buffers(app); cpu++) {
		struct relay_app_stats s;
		if (!relay_app_stats(app, cpu, &s))
			bytes += s.bytes;
	}
	if (err)
		warnx("%s", relay_strerror(-err));
	else
		printf("%lu bytes of history\n", bytes);
	relay_app_close(app);
	return err ? 1 : 0;
}
