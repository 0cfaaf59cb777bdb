/* cc -O2 -o stream_reader stream_reader.c $(pkg-config --cflags --libs relayfs) */
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <poll.h>
#include <relayfs/relay_app.h>
#include <signal.h>
#include <stdio.h>

static void on_signal(int signum)
{
	(void)signum; /* the signal only has to end ppoll() */
}

/* Wait until ^C, or until the channel is removed. Signals are delivered only in ppoll(), so none is missed. */
static void wait_for_end(struct relay_app *app)
{
	sigset_t block, none;
	sigemptyset(&none);
	sigemptyset(&block);
	sigaddset(&block, SIGINT);
	sigaddset(&block, SIGTERM);
	sigprocmask(SIG_BLOCK, &block, NULL);
	signal(SIGINT, on_signal);
	signal(SIGTERM, on_signal);
	warnx("running, end it with ^C");
	ppoll(&(struct pollfd){.fd = relay_app_fd(app), .events = POLLIN}, 1, NULL, &none);
}

static void report(struct relay_app *app)
{
	for (unsigned cpu = 0; cpu < relay_app_n_buffers(app); cpu++) {
		struct relay_app_stats s;
		if (relay_app_stats(app, cpu, &s))
			continue;
		printf("cpu %u: %lu bytes, at most %lu sub-buffers behind, %lu records lost\n", cpu,
		       (unsigned long)s.bytes, (unsigned long)s.max_backlog, (unsigned long)s.lost_records);
	}
}

/* Write a channel's records to files OUTPUT0, OUTPUT1 ...: stream_reader MNT/app/cpu OUTPUT */
int main(int argc, char **argv)
{
	if (argc != 3)
		errx(2, "usage: stream_reader MNT/app/cpu OUTPUT");
	struct relay_app_options options = {
	    .size = sizeof(options), .create = "subbuf_size=256K n_subbufs=16", .output = argv[2]};
	struct relay_app *app = relay_app_open(argv[1], &options);
	if (!app)
		errx(1, "%s: %s", argv[1], relay_strerror(errno));
	int err = relay_app_start(app);
	if (!err) {
		wait_for_end(app);
		err = relay_app_stop(app);
		report(app);
	}
	if (err)
		warnx("%s", relay_strerror(-err));
	relay_app_close(app);
	return err ? 1 : 0;
}
