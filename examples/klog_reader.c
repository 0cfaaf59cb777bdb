/* cc -O2 -o klog_reader klog_reader.c $(pkg-config --cflags --libs relayfs) */
#include <err.h>
#include <errno.h>
#include <poll.h>
#include <relayfs/relay_app.h>
#include <stdio.h>

static int print(struct relay_app *app, unsigned cpu, const void *data, size_t length, size_t padding)
{
	(void)app, (void)cpu, (void)padding;
	return fwrite(data, 1, length, stdout) == length && !fflush(stdout) ? 0 : -EIO;
}

/* Print the log of a program, until the channel is removed: klog_reader MNT/app/log
 * One buffer serves all CPUs, so that lines are in order; each is read as soon as it is written. */
int main(int argc, char **argv)
{
	if (argc != 2)
		errx(2, "usage: klog_reader MNT/app/log");
	struct relay_app_options options = {
	    .size = sizeof(options), .create = "buffers=single delivery=packet", .process_subbuf = print};
	struct relay_app *app = relay_app_open(argv[1], &options);
	if (!app)
		errx(1, "%s: %s", argv[1], relay_strerror(errno));
	int err = relay_app_start(app);
	if (!err) {
		poll(&(struct pollfd){.fd = relay_app_fd(app), .events = POLLIN}, 1, -1);
		err = relay_app_stop(app);
	}
	if (err)
		warnx("%s", relay_strerror(-err));
	relay_app_close(app);
	return err ? 1 : 0;
}
