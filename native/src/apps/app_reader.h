/* SPDX-License-Identifier: MIT */
/* A relay_app's reader of one buffer, which delivers its data. */
#ifndef RELAYFS_APPS_APP_READER_H
#define RELAYFS_APPS_APP_READER_H

#include "apps/app_output.h"
#include "buffer/buffer.h"

#include <pthread.h>
#include <relayfs/relay_app.h>

/* The most bytes of a read(2) of a relay file. */
enum { APP_READ_BYTES = 1 << 20 };

/* The state that all readers of an app share. */
struct app_shared {
	struct relay_app *app;
	uint32_t way; /* enum relay_app_way */
	int (*process_subbuf)(struct relay_app *app, unsigned cpu, const void *data, size_t length, size_t padding);
	uint32_t stop; /* futex; 1: the readers have to end. Writer: relay_app_stop() */
	int stop_fd;   /* an eventfd that is readable when `stop` is 1, for poll(2) */
	int over_fd; /* an eventfd that is readable when the last reader has ended, or one has failed. Writers: readers */
	uint32_t n_running;  /* readers. Writers: relay_app_start(), readers */
	uint64_t max_blocks; /* by which all output files together may grow. Writer: relay_app_limit() */
	uint64_t n_blocks;   /* by which they have grown since relay_app_start(). Writers: readers */
};

struct app_reader {
	struct app_shared *shared;
	struct rchan_buf *buf; /* only this thread uses its plan; other fields are for all threads */
	bool on_its_cpu;       /* the thread is to run on the buffer's CPU. Writer: relay_app_start() */
	pthread_t thread;
	bool running;   /* the thread has to be joined. Writers: relay_app_start(), relay_app_stop() */
	bool has_taken; /* it has read data since it last slept or napped. Writer: the thread */
	bool is_urgent; /* the buffer was more than half full at the last look. Writer: the thread */
	int result;     /* of the thread, once it is joined */
	struct app_output output;
	int file;             /* the relay file, for RELAY_APP_READ; or -1 */
	struct app_room room; /* for pieces that are read, or copied because they go to a file or can be overwritten */
	size_t held;          /* bytes read that could not be delivered, the first to deliver after a start */
	uint64_t until;       /* stream position to end at. Writers: those of `running`, before `stop` */
	struct relay_app_stats stats; /* Writer: the thread; lost_*: of the channel at relay_app_start() */
};

/* The thread. argument: the reader. */
void *relay_app_reader_run(void *argument);

/* Set a number that relay_app_stats() may be reading. Relaxed: no other data depends on it. */
static inline void relay_app_count(uint64_t *counter, uint64_t value)
{
	__atomic_store_n(counter, value, __ATOMIC_RELAXED);
}

/* Lost records and bytes, without those refused while the channel was disabled. */
void relay_app_lost(const struct relay_stats *stats, uint64_t *records, uint64_t *bytes);

#endif
