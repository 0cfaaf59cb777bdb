/* cc -O2 -o reserve_reader reserve_reader.c $(pkg-config --cflags --libs relayfs) */
#include "reserve.h"

#include <err.h>
#include <errno.h>
#include <poll.h>
#include <relayfs/relay_app.h>
#include <stdio.h>

/* Lets one thread at a time print. */
static int print_records(unsigned cpu, const char *at, const char *end, unsigned *written)
{
	for (const struct record *record; at < end; at += record->reserved) {
		record = (const struct record *)at;
		if ((size_t)(end - at) < sizeof(*record) || record->reserved < sizeof(*record) ||
		    record->reserved > (size_t)(end - at) || record->used > record->reserved - sizeof(*record)) {
			warnx("cpu %u: no record %zu bytes before the end of the data", cpu, (size_t)(end - at));
			return -EBADMSG;
		}
		fwrite(record->text, 1, record->used, stdout);
		*written += record->used;
	}
	return 0;
}

/* Print a sub-buffer, and check that it holds as much text as its header says. */
static int process(struct relay_app *app, unsigned cpu, const void *data, size_t length, size_t padding)
{
	(void)app, (void)padding;
	const struct header *header = data;
	unsigned written = 0;
	/* The piece behind a record whose producer died has no header. */
	int is_begun = length >= sizeof(*header) && header->magic == HEADER_MAGIC;
	const char *records = (const char *)data + (is_begun ? sizeof(*header) : 0);
	int err = print_records(cpu, records, (const char *)data + length, &written);
	if (!err && is_begun && written != header->written)
		warnx("cpu %u: a sub-buffer has %u bytes of text, and its header says %u", cpu, written,
		      header->written);
	return err;
}

/* Print the records of reserve_producer, until the channel is removed: reserve_reader MNT/app/BASE */
int main(int argc, char **argv)
{
	if (argc != 2)
		errx(2, "usage: reserve_reader MNT/app/BASE");
	struct relay_app_options options = {.size = sizeof(options), .process_subbuf = process};
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
