/* cc -O2 -o tracer tracer.c $(pkg-config --cflags --libs relayfs) -pthread */
#include "trace.h"

#include <err.h>
#include <errno.h>
#include <pthread.h>
#include <relayfs/classic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Trace what the threads of this program do, with relayfs as it was announced in 2003: tracer PATH EVENTS [clock]
 * PATH is on relayfs: /xlog/9 is MNT/xlog/9, which trace_reader reads. Each sub-buffer has a header and a footer, by
 * which the events' time deltas are converted to times. With `clock` deltas are microseconds, else the TSC if there is one. */

enum { NBUFS = 8, N_THREADS = 2 };

static int channel_id;
static long n_events;
static uint32_t ended; /* footers written; needs no lock, because callbacks of a channel run one at a time */

static struct moment moment(uint32_t magic, uint32_t buffer_id, struct timeval time, uint64_t tsc)
{
	struct moment m = {
	    .magic = magic, .buffer_id = buffer_id, .seconds = time.tv_sec, .microseconds = time.tv_usec, .tsc = tsc};
	return m;
}

/* A sub-buffer begins: write the header into its first start_reserve bytes. */
static int buffer_start(int id, char *current_write_pos, uint32_t buffer_id, struct timeval start_time,
                        uint64_t start_tsc, int using_tsc)
{
	struct header header = {moment(HEADER, buffer_id, start_time, start_tsc)};
	(void)id, (void)using_tsc;
	memcpy(current_write_pos, &header, sizeof(header));
	return sizeof(header);
}

/* A sub-buffer is full: write the footer, for which there are at least end_reserve bytes. */
static int buffer_end(int id, char *current_write_pos, char *end_of_buffer, struct timeval end_time, uint64_t end_tsc,
                      int using_tsc)
{
	struct footer footer = {.end = moment(FOOTER, ended++, end_time, end_tsc),
	                        .unused = (uint64_t)(end_of_buffer - current_write_pos)};
	(void)id, (void)using_tsc;
	memcpy(current_write_pos, &footer, sizeof(footer));
	return sizeof(footer);
}

/* Suspend the channel: lose new events rather than unread ones. */
static int buffers_full(int id)
{
	(void)id;
	return 1;
}

static struct rchan_callbacks callbacks = {
    .buffer_start = buffer_start, .buffer_end = buffer_end, .buffers_full = buffers_full};

/* The channel is suspended: resume it when the reader has read all data. relay_resume() takes all data as read, so no other
 * thread may resume the channel, and fill it again, between the two calls. */
static void wait_for_reader(void)
{
	static pthread_mutex_t resuming = PTHREAD_MUTEX_INITIALIZER;
	struct rchan_info info;
	usleep(1000);
	pthread_mutex_lock(&resuming);
	if (!relay_info(channel_id, &info) && info.suspended && info.bufs_consumed == info.bufs_produced)
		relay_resume(channel_id);
	pthread_mutex_unlock(&resuming);
}

static void *work(void *argument)
{
	int written;
	for (long i = 0; i < n_events; i++) {
		struct event event = {.magic = EVENT, .thread = (uint16_t)(size_t)argument};
		int n = snprintf(event.text, sizeof(event.text), "has done %ld of %ld", i + 1, n_events);
		event.length = (uint16_t)(offsetof(struct event, text) + (size_t)n);
		/* A program that must not wait would lose this event. */
		while ((written = relay_write(channel_id, &event, event.length, offsetof(struct event, time_delta))) ==
		       -ENOSPC)
			wait_for_reader();
		if (written < 0) {
			warnx("%s", strerror(-written));
			exit(1);
		}
	}
	return NULL;
}

int main(int argc, char **argv)
{
	if (argc < 3 || argc > 4)
		errx(2, "usage: tracer PATH EVENTS [clock]");
	pthread_t threads[N_THREADS];
	uint32_t flags = RELAY_SCHEME_ANY | RELAY_USAGE_GLOBAL | RELAY_DELIVERY_BULK;
	if (argc < 4)
		flags |= RELAY_TIMESTAMP_TSC;
	channel_id =
	    relay_open(argv[1], BUFSIZE, NBUFS, flags, &callbacks, sizeof(struct header), sizeof(struct footer), 0);
	if (channel_id < 0)
		errx(1, "%s: %s", argv[1], strerror(-channel_id));
	n_events = atol(argv[2]);
	for (size_t i = 0; i < N_THREADS; i++)
		pthread_create(&threads[i], NULL, work, (void *)i);
	for (size_t i = 0; i < N_THREADS; i++)
		pthread_join(threads[i], NULL);
	/* Write the last footer; a reader that has the file open can read to the end. */
	relay_close(channel_id);
	return 0;
}
