/* cc -O2 -o reserve_producer reserve_producer.c $(pkg-config --cflags --libs relayfs) -pthread */
#include "reserve.h"

#include <err.h>
#include <errno.h>
#include <pthread.h>
#include <relayfs/relay.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { N_THREADS = 3, MAX_BUFFERS = 1024 };

static struct rchan *chan;
static char *first_subbuf[MAX_BUFFERS]; /* start of each buffer's first sub-buffer */
static long n_records;

/* Reserve a header in each sub-buffer. Do not begin a sub-buffer while all are full. */
static int subbuf_start(struct rchan_buf *buf, void *subbuf, void *prev_subbuf, unsigned int prev_padding)
{
	(void)prev_padding;
	if (!prev_subbuf && relay_buf_cpu(buf) < MAX_BUFFERS)
		first_subbuf[relay_buf_cpu(buf)] = subbuf;
	if (prev_subbuf && relay_buf_full(buf))
		return 0;
	*(struct header *)subbuf = (struct header){.magic = HEADER_MAGIC};
	subbuf_start_reserve(buf, sizeof(struct header));
	return 1;
}

static struct header *header_of(const void *reserved)
{
	for (unsigned cpu = 0; cpu < MAX_BUFFERS && first_subbuf[cpu]; cpu++) {
		size_t offset = (size_t)((const char *)reserved - first_subbuf[cpu]);
		if (offset < (size_t)SUBBUF_SIZE * N_SUBBUFS)
			return (struct header *)(first_subbuf[cpu] + offset / SUBBUF_SIZE * SUBBUF_SIZE);
	}
	abort();
}

/* Format a record in place. Its length is known only afterwards, so reserve the maximum and store the length that
 * was used. 0 or -errno. */
static int log_event(long who, long i)
{
	/* Reserve a multiple of the alignment, so that all records are aligned. */
	size_t length = sizeof(struct record) + TEXT_MAX;
	struct record *record = relay_try_reserve(chan, length);
	if (!record)
		return -errno;
	record->reserved = (unsigned short)length;
	record->used = (unsigned short)snprintf(record->text, TEXT_MAX, "thread %ld event %ld\n", who, i);
	/* Other threads add to the same header. */
	__atomic_fetch_add(&header_of(record)->written, record->used, __ATOMIC_RELAXED);
	relay_commit(chan, record);
	return 0;
}

static void *work(void *argument)
{
	for (long i = 0; i < n_records;) {
		int err = log_event((long)argument, i);
		if (!err)
			i++;
		else if (err == -ENOSPC)
			usleep(1000); /* full: wait for reserve_reader */
		else
			return (void *)(long)err;
	}
	return NULL;
}

/* Three threads log N events each; then the channel is removed: reserve_producer MNT/app BASE N */
int main(int argc, char **argv)
{
	if (argc != 4)
		errx(2, "usage: reserve_producer MNT/app BASE N");
	struct rchan_callbacks callbacks = {.subbuf_start = subbuf_start};
	chan = relay_open(argv[2], argv[1], SUBBUF_SIZE, N_SUBBUFS, &callbacks, NULL);
	if (!chan)
		errx(1, "%s: %s", argv[2], relay_strerror(errno));
	n_records = atol(argv[3]);
	pthread_t threads[N_THREADS];
	for (long i = 0; i < N_THREADS; i++)
		if (pthread_create(&threads[i], NULL, work, (void *)i))
			return 1;
	long err = 0;
	for (int i = 0; i < N_THREADS; i++) {
		void *result;
		pthread_join(threads[i], &result);
		err = result ? (long)result : err;
	}
	if (err)
		warnx("%s", relay_strerror((int)err));
	relay_close(chan); /* readers can still read to the end */
	return err ? 1 : 0;
}
