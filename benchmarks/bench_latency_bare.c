/* SPDX-License-Identifier: MIT */
/*
 * A FUSE server that does nothing but wake who polls its file: the limit of any that is written with libfuse.
 *
 *     bench_latency_bare MOUNTPOINT WORDS_FILE     serves the file MOUNTPOINT/file, in the foreground, until it is unmounted
 *
 * The file is readable if struct words, in WORDS_FILE, says so.
 */
#define _GNU_SOURCE
#define FUSE_USE_VERSION 31
#include "bench_latency.h"

#include <fuse3/fuse_lowlevel.h>
#include <poll.h>

enum { FILE_INODE = 2 };

static struct words *words;
static struct fuse_pollhandle *sleeper;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static struct stat attributes(fuse_ino_t inode)
{
	struct stat found = {.st_ino = inode, .st_nlink = 1};

	found.st_mode = inode == FUSE_ROOT_ID ? S_IFDIR | 0755 : S_IFREG | 0444;
	return found;
}

static void bare_lookup(fuse_req_t request, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param entry = {.ino = FILE_INODE, .attr_timeout = 1, .entry_timeout = 1};

	(void)parent;
	if (strcmp(name, "file") != 0) {
		fuse_reply_err(request, ENOENT);
		return;
	}
	entry.attr = attributes(FILE_INODE);
	fuse_reply_entry(request, &entry);
}

static void bare_getattr(fuse_req_t request, fuse_ino_t inode, struct fuse_file_info *file)
{
	struct stat found = attributes(inode);

	(void)file;
	fuse_reply_attr(request, &found, 1);
}

static void bare_open(fuse_req_t request, fuse_ino_t inode, struct fuse_file_info *file)
{
	(void)inode;
	fuse_reply_open(request, file);
}

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
	static const struct fuse_lowlevel_ops operations = {
	    .lookup = bare_lookup, .getattr = bare_getattr, .open = bare_open, .poll = bare_poll};
	char *arguments[] = {argv[0], NULL};
	struct fuse_args given = {1, arguments, 0};
	pthread_t waker;

	if (argc != 3)
		return 2;
	words = map_words(argv[2]);
	struct fuse_session *session = fuse_session_new(&given, &operations, sizeof(operations), NULL);
	if (!session || fuse_session_mount(session, argv[1]) || pthread_create(&waker, NULL, wake_sleepers, NULL))
		return 2;
	fuse_session_loop(session);
	fuse_session_unmount(session);
	return 0;
}
