/* cc -O2 -o flight_reader flight_reader.c $(pkg-config --cflags --libs relayfs) */
#include <relayfs/relay_app.h>
#include <stdio.h>
#include <string.h>

/* Read the records of a flight recorder, after a crash or while programs still write: flight_reader MNT/app/flight OUTPUT
 * and then: sort -n OUTPUT* */
int main(int argc, char **argv)
{
	struct relay_app_options options = {
	    .size = sizeof(options), .output = argc > 2 ? argv[2] : NULL, .keep_enabled = 1};
	struct relay_app *app = relay_app_open(argc > 2 ? argv[1] : "", &options);
	if (!app) {
		perror("relay_app_open");
		return 1;
	}
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
		fprintf(stderr, "flight_reader: %s\n", strerror(-err));
	else
		printf("%lu bytes of history\n", bytes);
	relay_app_close(app);
	return err ? 1 : 0;
}
