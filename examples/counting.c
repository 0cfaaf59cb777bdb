/* cc -O2 -o counting counting.c $(pkg-config --cflags --libs relayfs) */
#include <err.h>
#include <errno.h>
#include <relayfs/counters.h>
#include <relayfs/relay.h>
#include <stdio.h>

/* Count the lines and bytes of the standard input: counting MNT <FILE; see relayctl counters. */
int main(int argc, char **argv)
{
	struct relay_perf_spec bytes_spec = {.size = sizeof(bytes_spec), .uid = -1u, .gid = -1u, .unit = "bytes"};
	struct relay_counters *counters = relay_counters_open(argc > 1 ? argv[1] : NULL);
	if (!counters)
		errx(1, "%s: %s", argc > 1 ? argv[1] : "the store", relay_strerror(errno));
	/* These numbers are the same in every process. */
	int lines = relay_perf_add(counters, "counting/lines");
	int bytes = relay_perf_add_as(counters, "counting/size", &bytes_spec);
	int err = lines < 0 ? -lines : bytes < 0 ? -bytes : 0;
	for (int c; !err && (c = getchar()) != EOF;) {
		relay_perf_adjust(counters, bytes, 1);
		if (c == '\n')
			relay_perf_adjust(counters, lines, 1);
	}
	if (err)
		warnx("%s", relay_strerror(err));
	relay_counters_close(counters);
	return err ? 1 : 0;
}
