/* SPDX-License-Identifier: MIT */
/*
 * A FUSE server that does nothing but wake who polls its file: the limit of any that is written with libfuse.
 *
 *     bench_latency_bare MOUNTPOINT WORDS_FILE     serves the file MOUNTPOINT/file, in the foreground, until it is unmounted
 *
 * The file is readable if struct words, in WORDS_FILE, says so.
 */
#define _GNU_SOURCE
#include "bench_bare.h"
#include "bench_latency.h"

#include <poll.h>

static struct words *words;
static struct fuse_pollhandle *sleeper;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* Make `handle` the one to be woken. Returns the one that was. */
static struct fuse_pollhandle *exchange(struct fuse_pollhandle *handle)
{
	pthread_mutex_lock(&mutex);
	struct fuse_pollhandle *before = sleeper;
	sleeper = handle;
	pthread_mutex_unlock(&mutex);
	return before;
}

static void bare_poll(fuse_req_t request, fuse_ino_t inode, struct fuse_file_info *file, struct fuse_pollhandle *handle)
{
	struct fuse_pollhandle *before = handle ? exchange(handle) : NULL;

	(void)inode;
	(void)file;
	if (before)
		fuse_pollhandle_destroy(before);
	/* After the exchange: then whoever makes the file readable later wakes the handle. */
	fuse_reply_poll(request, __atomic_load_n(&words->is_ready, __ATOMIC_SEQ_CST) ? POLLIN : 0);
}

static void *wake_sleepers(void *unused)
{
	(void)unused;
	for (uint32_t seen = 0;; seen = __atomic_load_n(&words->seq, __ATOMIC_SEQ_CST)) {
		wait_for_word(&words->seq, seen);
		struct fuse_pollhandle *handle = exchange(NULL);
		if (!handle)
			continue;
		fuse_lowlevel_notify_poll(handle);
		fuse_pollhandle_destroy(handle);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	struct bare_file file = {.bytes = 0};
	pthread_t waker;

	if (argc != 3)
		return 2;
	words = map_words(argv[2]);
	if (pthread_create(&waker, NULL, wake_sleepers, NULL))
		return 2;
	return bare_serve(argv[0], argv[1], &file, (struct fuse_lowlevel_ops){.poll = bare_poll}) ? 0 : 2;
}
